"""Compactions that people submit, with SlateDB's own Admin: carried out, or refused before they do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.base import events
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.planning.tiered import TieredPolicy
from lithify.protocol.model import CompactionState
from tests.judge.official import Admin, Put, TreeShape, open_db
from tests.protocol.rig import Interposed, Rig, Template, ledger_write

L0S = 3
RUNS = 3
IDLE = TieredPolicy(min_compaction_sources=100, max_compaction_sources=100)
"""A planner that proposes nothing."""


def flush(path: Path, number: int, model: dict[bytes, bytes]) -> None:
    rows = {b"own%d" % number: b"v", b"shared": b"%d" % number}
    model.update(rows)
    with open_db(path) as database:
        database.write_batch([Put(key, value) for key, value in rows.items()])
        database.flush()


def submit(rig: Rig, l0: list[str], runs: list[int], destination: int) -> Ulid:
    return Ulid(Admin(rig.path).submit_compaction(l0, runs, destination))


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Three L0 SSTs above the runs 2, 1 and 0. Every flush has a row of its own and an overwrite."""
    path = tmp_path_factory.mktemp("shaped") / "db"
    model: dict[bytes, bytes] = {}
    rig = Rig(Template(path, model), path, options={"policy": IDLE})
    for number in range(RUNS + L0S):
        flush(path, number, model)
        if number < RUNS:
            coordinator = rig.coordinator()
            (tree,) = Admin(path).trees()
            submit(rig, [view.id for view in tree.l0], [], number)
            rig.finish(coordinator, rig.worker())
    (tree,) = Admin(path).trees()
    assert (len(tree.l0), [run.id for run in tree.runs]) == (L0S, [2, 1, 0])
    return rig.template


# L0 SSTs by position, newest first; runs; destination.
ACCEPTED: dict[str, tuple[list[int], list[int], int]] = {
    "all L0 into a new run": ([0, 1, 2], [], 3),
    "the oldest L0 alone": ([2], [], 3),
    "the oldest two": ([1, 2], [], 3),
    "L0 and the newest run": ([0, 1, 2], [2], 2),
    "everything": ([0, 1, 2], [2, 1, 0], 0),
    "one run, written anew": ([], [0], 0),
    "two neighbouring runs": ([], [2, 1], 1),
}
REFUSED: dict[str, tuple[list[int], list[int], int]] = {
    "the newest L0 alone, which SlateDB accepts and loses the others": ([0], [], 3),
    "the newest two": ([0, 1], [], 3),
    "not the middle one": ([0, 2], [], 3),
    "the wrong order": ([2, 1], [], 3),
    "L0 over a gap": ([0, 1, 2], [1], 1),
    "the newest L0 and a run": ([0], [2], 2),
    "runs over a gap": ([], [2, 0], 0),
    "runs in the wrong order": ([], [1, 2], 1),
    "a run that is not there": ([], [7], 7),
    "no sources": ([], [], 3),
    "into an older run that is no source": ([0, 1, 2], [], 0),
    "into a new run below the runs": ([], [1, 0], 5),
    "not into its oldest source": ([], [2, 1], 2),
}


def on(shaped: Template, tmp_path: Path) -> tuple[Rig, TreeShape]:
    rig = Rig.of(shaped, tmp_path, policy=IDLE)
    (tree,) = Admin(rig.path).trees()
    return rig, tree


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_safe_is_carried_out(shaped: Template, tmp_path: Path, case: str) -> None:
    rig, tree = on(shaped, tmp_path)
    positions, runs, destination = ACCEPTED[case]
    submitted = submit(rig, [tree.l0[n].id for n in positions], runs, destination)
    rig.finish(rig.coordinator(), rig.worker())
    assert [event.compaction for event in rig.seen(events.Committed)] == [submitted]
    (after,) = Admin(rig.path).trees()
    assert len(after.l0) == L0S - len(positions)
    assert destination in [run.id for run in after.runs]
    assert not set(runs) - {destination} & {run.id for run in after.runs}
    rig.check()


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_is_failed_with_its_reason(shaped: Template, tmp_path: Path, case: str) -> None:
    rig, tree = on(shaped, tmp_path)
    positions, runs, destination = REFUSED[case]
    submitted = submit(rig, [tree.l0[n].id for n in positions], runs, destination)
    rig.finish(rig.coordinator(), rig.worker())
    (refused,) = rig.seen(events.CompactionRefused)
    assert refused.compaction == submitted
    failures = {failure.compaction: failure for failure in rig.dataset().journal.failures()}
    assert (failures[submitted].reason, failures[submitted].attempts) == (refused.reason, 0)
    compaction = rig.ledger.get(submitted)
    assert compaction is None or compaction.state is CompactionState.FAILED
    assert Admin(rig.path).trees() == (tree,)
    rig.check()


def test_two_that_want_the_same_are_carried_out_one_after_the_other_or_not_at_all(
    shaped: Template, tmp_path: Path
) -> None:
    rig, tree = on(shaped, tmp_path)
    first = submit(rig, [view.id for view in tree.l0], [], 3)
    second = submit(rig, [view.id for view in tree.l0], [2], 2)
    rig.finish(rig.coordinator(), rig.worker())
    assert [event.compaction for event in rig.seen(events.Committed)] == [first]
    assert [event.compaction for event in rig.seen(events.CompactionRefused)] == [second]
    rig.check()


def test_a_submission_that_meets_the_coordinators_write_is_not_lost(shaped: Template, tmp_path: Path) -> None:
    rig, tree = on(shaped, tmp_path)
    submitted = [submit(rig, [view.id for view in tree.l0], [], 3)]
    armed: list[bool] = []

    def another() -> None:
        submitted.append(submit(rig, [], [2, 1], 1))

    coordinator = rig.coordinator(
        wrap=lambda store: Interposed(store, lambda call: bool(armed) and ledger_write(call), another)
    )
    armed.append(True)
    coordinator.tick()
    assert len(submitted) == 2
    rig.finish(coordinator, rig.worker())
    assert [event.compaction for event in rig.seen(events.Committed)] == submitted
    rig.check()
