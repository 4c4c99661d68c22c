"""The official compactor does with random databases what the plain rules say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judge.admin import Admin
from tests.judge.client import concat
from tests.judge.random_db import (
    compact_copy_officially,
    make_random_database,
    random_recipe,
    random_specs,
)
from tests.judge.rows import read_database
from tests.judge.semantics import Rules, compact_rows


@pytest.mark.parametrize("seed", range(20))
def test_the_official_rows_are_those_of_the_rules(tmp_path: Path, seed: int) -> None:
    database = make_random_database(seed, tmp_path / "db")
    manifest = Admin(database.path).read_manifest()
    trees = {tree.prefix: tree for tree in Admin(database.path).trees()}
    before = read_database(database.path)
    specs = random_specs(seed, tuple(trees.values()))
    assert specs
    after = compact_copy_officially(database, tmp_path / "copy", specs)
    for spec in specs:
        tree, rows = trees[spec.prefix], before[spec.prefix]
        by_view = dict(zip((view.id for view in tree.l0), rows.l0, strict=True))
        sources = [by_view[view_id] for view_id in spec.l0_view_ids]
        sources += [dict(rows.runs)[run_id] for run_id in spec.run_ids]
        rules = Rules(
            is_last_run=not tree.runs or tree.runs[-1].id == spec.destination,
            clock_tick_ms=manifest.last_l0_clock_tick,
            retention_min_seq=manifest.recent_snapshot_min_seq,
            merge_operator=concat if database.recipe.has_merges else None,
        )
        assert dict(after[spec.prefix].runs)[spec.destination] == compact_rows(sources, rules)


def test_the_recipes_cover_what_they_should() -> None:
    recipes = [random_recipe(seed) for seed in range(200)]
    assert {recipe.codec for recipe in recipes} == {None, "Snappy", "Zlib", "Lz4", "Zstd"}
    assert {recipe.block_size for recipe in recipes} == {1024, 4096, 16384, 65536}
    assert {(recipe.has_merges, recipe.has_segments, recipe.parents) for recipe in recipes} == {
        (merges, segments, parents)
        for merges in (False, True)
        for segments in (False, True)
        for parents in (0, 1, 2)
    }
