"""Random databases, each compacted by Lithify and by the official compactor: every row version of every tree
must be equal.

    python -m tests.oneshot.random_databases [DATABASES] [FIRST]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.model import TieredSpec
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Proposal
from lithify.service import one_shot
from lithify.testing.engine import InlineEngine
from tests.compacting import check_state_files, dataset_at
from tests.judge.admin import Admin
from tests.judge.random_db import compact_copy_officially, make_random_database, random_specs
from tests.judge.rows import read_database


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


def main() -> None:
    """Compact two hundred databases, or as many as are asked for."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    started_s = time.monotonic()
    for done, seed in enumerate(range(first, first + count), 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                compact_both(seed, Path(folder))
            except BaseException as error:
                error.add_note(f"replay: python -m tests.oneshot.random_databases 1 {seed}")
                raise
        if done % 10 == 0:
            print(f"{done} of {count}, {time.monotonic() - started_s:.0f} s", flush=True)
    print(f"{count} databases: both compactors left the same rows.")


if __name__ == "__main__":
    main()
