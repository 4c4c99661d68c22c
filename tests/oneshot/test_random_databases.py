"""Two hundred random databases, each compacted by Lithify and by the official compactor: every row
version of every tree must be equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lithify.clock import SystemClock
from lithify.compaction.proposal import NOTHING_HELD, Held, Plan, Proposal
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.model import TieredSpec
from lithify.ids import RandomIds, Ulid
from lithify.service import one_shot
from lithify.testing.engine import InlineEngine
from tests.compacting import check_state_files, dataset_at
from tests.judge.admin import Admin
from tests.judge.random_db import compact_copy_officially, make_random_database, random_specs
from tests.judge.rows import read_database

DATABASES = 200
PER_TEST = 10


@pytest.mark.parametrize("first_seed", range(0, DATABASES, PER_TEST))
def test_both_compactors_leave_the_same_rows(first_seed: int, tmp_path: Path) -> None:
    for seed in range(first_seed, first_seed + PER_TEST):
        compact_both(seed, tmp_path / str(seed))


def compact_both(seed: int, folder: Path) -> None:
    database = make_random_database(seed, folder / "db")
    specs = random_specs(seed, Admin(database.path).trees())
    official = compact_copy_officially(database, folder / "official", specs)

    proposals = tuple(
        Proposal(
            TieredSpec(s.prefix, tuple(map(Ulid, s.l0_view_ids)), tuple(s.run_ids), s.destination),
            priority=0.5,
            cost_bytes=0,
            reason="the same as the official one",
        )
        for s in specs
    )
    plans = iter((Plan(proposals), Plan(proposals)))

    def planner(_snapshot: Any, _ledger: Any, _held: Held = NOTHING_HELD, /) -> Plan:
        # Asked once before the run starts and once by its first tick.
        return next(plans, Plan())

    dataset = dataset_at(
        database.path, merge_operator=database.merge_operator, max_sst_size=database.recipe.max_sst_size
    )
    clock, ids = SystemClock(), RandomIds()
    result = one_shot.run(
        dataset,
        InlineEngine(),
        clock,
        ids,
        Leadership(dataset, clock, ids),
        planner=planner,
        take_over=True,
    )
    assert (len(result.committed), result.failures) == (len(specs), ()), f"seed {seed}"
    check_state_files(dataset, database.path)
    assert read_database(database.path) == official, f"seed {seed}"
