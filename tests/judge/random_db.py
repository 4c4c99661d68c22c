"""Random databases, made by the official client from a seed.

A seed decides the recipe (block size, codec, merges, segments, clone or not) and all content:

1. Keys come from a small space, so that flushes overlap: short and long keys, sharing prefixes, some
   much hotter than others; values are empty, short, or larger than a block.
2. Every flush writes puts, deletes and (with a merge operator) operands, one by one or in batches,
   without expiry, with an hour to live, or with so few milliseconds that they expire on the way.
3. Snapshots are taken and let go at random, and may be alive at the last flush: then the manifest's
   `recent_snapshot_min_seq` is below `last_l0_seq`.
4. Between flushes the official compactor may compact some part of a tree.
5. A clone takes projections of one or two such databases and goes on writing.

The content is the same for a seed except for wall-clock times: which rows expire depends on them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.judge.admin import Admin, CloneSource, TreeShape
from tests.judge.client import (
    Database,
    Delete,
    Merge,
    OpenOptions,
    Put,
    Snapshot,
    Write,
    concat,
    copy_database,
    open_db,
)
from tests.judge.compactor import (
    DEFAULT_MAX_SST_SIZE,
    TieredSpec,
    compact_officially,
    full_compaction,
    next_run_id,
)
from tests.judge.rows import TreeRows, read_database

MERGE_OPERATOR = "tests.judge.client:concat"
"""Import path of the merge operator of databases with merges."""

POLL_MS = 4
CODECS = (None, None, "Snappy", "Zlib", "Lz4", "Zstd")
BLOCK_SIZES = (1024, 4096, 4096, 16384, 65536)
HOUR_MS = 3_600_000
TTLS_MS = (1, 5, 20, HOUR_MS, 2 * HOUR_MS)
SEGMENTS = (b"a", b"b", b"c")
SPLIT_KEY = b"m"
"""Clones of two parents take the keys below from one and those above from the other."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What kind of database a seed makes."""

    seed: int
    block_size: int
    codec: str | None
    has_merges: bool
    has_segments: bool
    parents: int
    """0 for a database of its own, 1 or 2 for a clone."""
    min_filter_keys: int
    max_sst_size: int
    max_subcompactions: int

    @property
    def open_options(self) -> OpenOptions:
        """How the official client must open the database."""
        settings: dict[str, object] = {
            "compression_codec": self.codec,
            "min_filter_keys": self.min_filter_keys,
            "wal_enabled": self.parents == 0,
        }
        return {
            "settings": settings,
            "block_size": self.block_size,
            "merge_operator": concat if self.has_merges else None,
            "segment_prefix_len": 1 if self.has_segments else None,
        }


@dataclass(frozen=True, slots=True)
class RandomDatabase:
    """A made database, closed."""

    path: Path
    recipe: Recipe

    @property
    def merge_operator(self) -> str | None:
        """Import path of the merge operator it needs."""
        return MERGE_OPERATOR if self.recipe.has_merges else None


def random_recipe(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(f"recipe {seed}")
    return Recipe(
        seed=seed,
        block_size=rng.choice(BLOCK_SIZES),
        codec=rng.choice(CODECS),
        has_merges=rng.random() < 0.5,
        has_segments=rng.random() < 0.3,
        parents=rng.choice((0, 0, 0, 1, 2)),
        min_filter_keys=rng.choice((0, 20, 1000)),
        max_sst_size=rng.choice((2_000, 20_000, DEFAULT_MAX_SST_SIZE)),
        max_subcompactions=rng.choice((1, 4)),
    )


def make_random_database(seed: int, folder: Path) -> RandomDatabase:
    """Make the database of a seed in `folder` (its parents, if any, beside it)."""
    recipe = random_recipe(seed)
    rng = random.Random(f"content {seed}")
    if recipe.parents:
        _make_clone(rng, recipe, folder)
    _write_flushes(rng, recipe, folder)
    return RandomDatabase(folder, recipe)


def random_specs(seed: int, trees: Sequence[TreeShape]) -> list[TieredSpec]:
    """One legal compaction of each tree that has something to compact, full ones more often than not."""
    rng = random.Random(f"specs {seed}")
    specs: list[TieredSpec] = []
    fresh_id = next_run_id(trees)
    for tree in trees:
        if tree.l0 or tree.runs:
            spec = _random_spec(rng, tree, trees, fresh_id)
            specs.append(spec)
            fresh_id = max(fresh_id, spec.destination + 1)
    return specs


def compact_copy_officially(
    database: RandomDatabase, copy: Path, specs: Sequence[TieredSpec]
) -> dict[bytes, TreeRows]:
    """Copy a database, let the official compactor carry out `specs` on the copy; the rows of its trees."""
    copy_database(database.path, copy)
    compact_officially(
        copy,
        specs,
        poll_ms=POLL_MS,
        max_sst_size=database.recipe.max_sst_size,
        max_subcompactions=database.recipe.max_subcompactions,
        **database.recipe.open_options,
    )
    return read_database(copy)


# Content


def _make_clone(rng: random.Random, recipe: Recipe, folder: Path) -> None:
    parents = [folder.with_name(f"{folder.name}-parent-{number}") for number in range(recipe.parents)]
    for parent in parents:
        _write_flushes(rng, recipe, parent)
    if recipe.parents == 1:
        sources = [CloneSource(parents[0], start=b"b", end=b"x")]
    else:
        sources = [CloneSource(parents[0], end=SPLIT_KEY), CloneSource(parents[1], start=SPLIT_KEY)]
    Admin(folder).clone_from(*sources)


def _write_flushes(rng: random.Random, recipe: Recipe, folder: Path) -> None:
    keys = _random_keys(rng, recipe)
    snapshots: list[Snapshot] = []
    flushes = rng.randint(1, 5)
    compact_after = rng.sample(range(1, 4), k=rng.choice((0, 1, 1, 2)))
    database = open_db(folder, **recipe.open_options)
    for number in range(1, flushes + 1):
        _write_rows(rng, recipe, database, keys, snapshots)
        database.flush()
        if number in compact_after:
            database = _compact_some(rng, recipe, folder, database)
            snapshots.clear()
    database.close(flush=False)


def _write_rows(
    rng: random.Random, recipe: Recipe, database: Database, keys: Sequence[bytes], snapshots: list[Snapshot]
) -> None:
    """The rows of one flush, with snapshots taken and let go in between."""
    for _ in range(rng.randint(1, 4)):
        writes = [_random_write(rng, recipe, keys) for _ in range(rng.randint(1, 25))]
        if rng.random() < 0.3:
            database.write_batch({write.key: write for write in writes}.values())
        else:
            database.write_each(writes)
        if rng.random() < 0.4:
            snapshots.append(database.snapshot())
        if snapshots and rng.random() < 0.2:
            snapshots.pop(rng.randrange(len(snapshots))).release()


def _compact_some(rng: random.Random, recipe: Recipe, folder: Path, database: Database) -> Database:
    """Close the database, let the official compactor do something, open it again."""
    database.close(flush=False)
    specs = random_specs(rng.getrandbits(32), Admin(folder).trees())
    # The client panics when it projects a run in which the versions of one key fill a whole SST.
    max_sst_size = DEFAULT_MAX_SST_SIZE if recipe.parents else recipe.max_sst_size
    compact_officially(folder, specs, poll_ms=POLL_MS, max_sst_size=max_sst_size, **recipe.open_options)
    return open_db(folder, **recipe.open_options)


def _random_keys(rng: random.Random, recipe: Recipe) -> list[bytes]:
    """A small key space, hot keys more than once."""
    keys = []
    for _ in range(rng.randint(5, 60)):
        start = rng.choice(SEGMENTS if recipe.has_segments else (*SEGMENTS, b"m", b"user/", b"z\xff"))
        length = rng.choice((0, 1, 2, 3, 8)) if rng.random() < 0.95 else rng.choice((300, 3000))
        keys.append(start + bytes(rng.choice(b"\x00abm\xff") for _ in range(length)))
    if rng.random() < 0.05:
        keys.append(rng.choice(SEGMENTS) + b"k" * 70_000)
    return keys + rng.choices(keys, k=3) * rng.randint(0, 5)


def _random_write(rng: random.Random, recipe: Recipe, keys: Sequence[bytes]) -> Write:
    key = rng.choice(keys)
    ttl_ms = rng.choice(TTLS_MS) if rng.random() < 0.3 else None
    chance = rng.random()
    if chance < 0.2:
        return Delete(key)
    if recipe.has_merges and chance < 0.6:
        return Merge(key, rng.randbytes(rng.randint(0, 4)), ttl_ms)
    return Put(key, _random_value(rng), ttl_ms)


def _random_value(rng: random.Random) -> bytes:
    length = rng.choice((0, 1, 10, 100, 100, 500)) if rng.random() < 0.97 else 5_000
    return rng.randbytes(rng.randint(1, 8)) * (length // 4) if rng.random() < 0.5 else rng.randbytes(length)


# Compactions


def _random_spec(
    rng: random.Random, tree: TreeShape, trees: Sequence[TreeShape], fresh_id: int
) -> TieredSpec:
    full = full_compaction(tree, trees)
    if not full.run_ids:
        full = replace(full, destination=fresh_id)
    if rng.random() < 0.5:
        return full
    sources: list[str | int] = [*full.l0_view_ids, *full.run_ids]
    first = rng.randrange(max(len(full.l0_view_ids), 1))
    # Whoever compacts L0s must take the oldest ones; with runs, the window must be consecutive.
    last = rng.randint(max(first, len(full.l0_view_ids) - 1), len(sources) - 1)
    window = sources[first : last + 1]
    run_ids = tuple(source for source in window if isinstance(source, int))
    return TieredSpec(
        tree.prefix,
        tuple(source for source in window if isinstance(source, str)),
        run_ids,
        min(run_ids) if run_ids else fresh_id,
    )
