"""The contract of every kind of dataset (`lithify.datasets.kind`), as checks to run on a dataset of that
kind.

A kind is tested with a `World`: one dataset, the program that writes to it, and the program that reads it.
Each of `CHECKS` takes a new world, and raises `AssertionError` if the kind breaks the contract.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from lithify.base.errors import CorruptObject, Fenced, Unsupported
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership, Term
from lithify.coordination.observers import DatasetObserver
from lithify.datasets.kind import DatasetPort, Kind
from lithify.datasets.options import CommandArgs
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.lease import FoundLease, Lease
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.presence import Presence
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service import one_shot
from lithify.service.admission import starting
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.store.objects import ObjectStore
from lithify.testing.clock import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import Crash, FaultyStore

Wrap = Callable[[ObjectStore], ObjectStore]
MAX_TICKS = 50
MAX_PLANS = 100
MAX_KILLS = 12
"""Number of runs to kill, spread evenly over all store calls of a run."""


def _as_it_is(store: ObjectStore) -> ObjectStore:
    return store


@dataclass(frozen=True)
class World:
    """One dataset, whose initial data are worth a compaction."""

    kind: Kind[Any]
    clock: ManualClock
    open: Callable[[Wrap], DatasetPort]
    """Opens the dataset without any cache, and with the given wrapper around its store."""
    write: Callable[[], None]
    """Writes more data worth a compaction, as the program that owns the data."""
    read: Callable[[], object]
    """Returns all data that a reader sees, comparable."""

    def dataset(self) -> DatasetPort:
        return self.open(_as_it_is)

    def lead(self, dataset: DatasetPort) -> Leadership:
        return Leadership(dataset, self.clock, RandomIds())

    def compact(self, dataset: DatasetPort | None = None) -> None:
        """Compact until nothing is left to do."""
        opened = self.dataset() if dataset is None else dataset
        plans = itertools.count()

        def plan(snapshot: object, ledger: AnyLedger, held: Held = NOTHING_HELD, /) -> Plan:
            assert next(plans) < MAX_PLANS, "it does not end"
            return opened.propose(snapshot, ledger, held)

        leadership = self.lead(opened)
        one_shot.run(opened, InlineEngine(), self.clock, RandomIds(), leadership, planner=plan)


def check_nothing_is_there_at_first(world: World) -> None:
    dataset = world.dataset()
    assert dataset.ledger() is None
    assert dataset.epoch() == 0
    assert dataset.coordinator().presence is Presence.NEVER
    assert not dataset.journal.failures()


def check_planning_changes_nothing(world: World) -> None:
    dataset = world.dataset()
    snapshot = dataset.snapshot()
    first, second = dataset.propose(snapshot, Ledger()), dataset.propose(snapshot, Ledger())
    assert first.proposals
    assert first.proposals == second.proposals
    assert world.dataset().snapshot() == snapshot
    assert world.dataset().ledger() is None


def check_proposals(world: World) -> None:
    """Names are unique, costs match the snapshot, priorities are from 0 to 1, and no two proposals that may
    run concurrently share an input."""
    dataset = world.dataset()
    snapshot = dataset.snapshot()
    proposals = dataset.propose(snapshot, Ledger()).proposals
    readers: dict[str, str] = {}
    names = [dataset.identify(proposal.spec).key for proposal in proposals]
    assert len(set(names)) == len(names)
    for name, proposal in zip(names, proposals, strict=True):
        assert dataset.identify(proposal.spec).unit
        assert proposal.reason
        assert proposal.cost_bytes == dataset.cost_bytes(proposal.spec, snapshot) > 0
        assert 0 <= proposal.priority <= 1
        assert 0 <= dataset.priority(proposal.spec, snapshot) <= 1
        sources = dataset.identify(proposal.spec).inputs
        assert sources
        assert {readers[source] for source in sources & readers.keys()} <= set(proposal.after)
        readers |= dict.fromkeys(sources, name)
        assert dataset.identify(proposal.spec).conflict_scope
    assert dataset.newest_ms(snapshot) >= 0
    for backlog in dataset.backlog(snapshot, world.clock.now_ms()):
        assert backlog.unit
        assert backlog.waiting >= 0


def check_held_back_is_not_proposed(world: World) -> None:
    dataset = world.dataset()
    snapshot = dataset.snapshot()
    proposals = dataset.propose(snapshot, Ledger()).proposals
    held = dict.fromkeys(dataset.identify(proposals[0].spec).inputs, "it failed")
    plan = dataset.propose(snapshot, Ledger(), held)
    assert not any(dataset.identify(proposal.spec).inputs & held.keys() for proposal in plan.proposals)


def check_specs_travel(world: World) -> None:
    dataset = world.dataset()
    for proposal in dataset.propose(dataset.snapshot(), Ledger()).proposals:
        text = dataset.encode_spec(proposal.spec)
        assert dataset.decode_spec(text) == proposal.spec
        for damaged in (text[: len(text) // 2], "", "null", "[]", "{}", "[[[["):
            try:
                dataset.decode_spec(damaged)
            except (CorruptObject, Unsupported):
                continue
            raise AssertionError(f"{damaged!r} was read as a spec")


def check_what_is_shown_is_json(world: World) -> None:
    kind, dataset = world.kind, world.dataset()
    for full in (False, True):
        args = CommandArgs(full)
        snapshot, ledger, choice = starting(dataset, world.clock, kind.planner(dataset, args, world.clock))
        details = dataset.plan_details()
        drawn = kind.show_plan(dataset, snapshot, ledger, choice.plan, args, world.clock, details)
        json.dumps(drawn.shown.document)
        assert drawn.shown.blocks
        for proposal in choice.plan.proposals:
            json.dumps(kind.show_spec(proposal.spec))


class _Seen(DatasetObserver):
    """What it was told last."""

    ledger: object = None
    snapshot: object = None
    lease: object = None
    failures: object = None

    def saw_ledger(self, ledger: AnyLedger | None) -> None:
        self.ledger = ledger

    def saw_snapshot(self, snapshot: object) -> None:
        self.snapshot = snapshot

    def saw_lease(self, found: FoundLease | None) -> None:
        self.lease = found

    def saw_failures(self, failures: Collection[FailedAttempt]) -> None:
        self.failures = failures


def check_reads_are_observed(world: World) -> None:
    """Observers see what a handle returns and publishes, and not what it reads for itself."""
    dataset, seen = world.dataset(), _Seen()
    dataset.observers.add(seen)
    epoch = dataset.take_epoch(lambda taking: None)
    dataset.lease.write(Lease("somebody", taken=epoch), None)
    dataset.coordinator()
    assert (seen.ledger, seen.snapshot, seen.lease) == (None, None, None)
    assert dataset.snapshot() is seen.snapshot
    published = dataset.update_ledger(lambda latest: latest, Ledger(epoch))
    assert published is seen.ledger
    assert dataset.ledger() is seen.ledger
    assert dataset.lease.read() is seen.lease is not None
    assert dataset.journal.failures() is seen.failures is not None
    for read in (dataset.glance, dataset.known):
        ledger, snapshot = read()
        assert ledger is seen.ledger
        assert snapshot is seen.snapshot


def check_a_compaction_loses_nothing(world: World) -> None:
    for _ in range(2):
        before, rows = world.dataset().snapshot(), world.read()
        world.compact()
        assert world.dataset().snapshot() != before
        assert world.read() == rows
        snapshot, ledger = world.dataset().snapshot(), world.dataset().ledger()
        assert ledger is not None
        assert not ledger.active()
        assert not world.dataset().propose(snapshot, ledger).proposals, "it ends"
        assert world.dataset().coordinator().presence is Presence.STOPPED
        world.write()


def check_commits_happen_once(world: World) -> None:
    """A committed compaction is recognised, and committing it again changes nothing."""
    dataset, rows = world.dataset(), world.read()
    compaction = _compacted(world, dataset)
    epoch = dataset.epoch()
    assert not dataset.was_committed(compaction)
    assert dataset.validate(compaction, dataset.snapshot(), dataset.ledger() or Ledger()) is None
    assert dataset.commit([compaction], epoch, _ignore) == {compaction.id: None}
    assert world.dataset().was_committed(compaction)
    after = world.dataset().snapshot()
    world.dataset().commit([compaction], epoch, _ignore)
    assert world.dataset().snapshot() == after
    assert world.read() == rows


def check_an_older_coordinator_commits_nothing(world: World) -> None:
    dataset = world.dataset()
    compaction = _compacted(world, dataset)
    epoch, rows = dataset.epoch(), world.read()
    with world.lead(world.dataset()).acquire(take_over=True) as term:
        assert term.epoch > epoch
        try:
            dataset.commit([compaction], epoch, _ignore)
        except Fenced:
            assert not world.dataset().was_committed(compaction)
            assert world.read() == rows
            return
    raise AssertionError("it was not fenced")


def check_what_changed_meanwhile_is_kept(world: World) -> None:
    """Data written while a compaction runs are still there after its commit."""
    dataset = world.dataset()
    compaction = _compacted(world, dataset)
    world.write()
    rows = world.read()
    dataset.commit([compaction], dataset.epoch(), _ignore)
    assert world.read() == rows


def check_kills_lose_nothing(world: World) -> None:
    """Kill runs at their store calls, before and after these take effect; the next run continues."""
    rehearsal = _Watched(partial(FaultyStore.scripted, faults={}))
    world.compact(world.open(rehearsal))
    step = max(rehearsal.calls // MAX_KILLS, 1)
    for n, number in enumerate(range(1, rehearsal.calls + 1, step)):
        world.write()
        rows = world.read()
        dying = _Watched(partial(FaultyStore.crash_at, number=number, after=n % 2 == 0))
        with suppress(Crash):
            world.compact(world.open(dying))
        assert world.read() == rows, f"killed at call {number} of {rehearsal.calls}"
        world.compact()
        assert world.read() == rows, f"killed at call {number} of {rehearsal.calls}, and tried again"


class _Watched:
    def __init__(self, wrap: Callable[[ObjectStore], FaultyStore]) -> None:
        self._wrap = wrap
        self._made: list[FaultyStore] = []

    def __call__(self, store: ObjectStore) -> FaultyStore:
        self._made.append(self._wrap(store))
        return self._made[-1]

    @property
    def calls(self) -> int:
        return sum(len(store.calls) for store in self._made)


def _compacted(world: World, dataset: DatasetPort) -> AnyCompaction:
    """Return a compaction whose outputs are written, but which is not committed."""
    coordinator = Coordinator(dataset, world.clock, RandomIds())
    coordinator.start(Term(dataset.take_epoch(lambda taking: None)))
    coordinator.tick()
    worker = Worker(dataset, InlineEngine(), world.clock, "w")
    for _ in range(MAX_TICKS):
        worker.tick()
        ledger = dataset.ledger()
        assert ledger is not None
        found = next((c for c in ledger.active() if c.state is CompactionState.COMPACTED), None)
        if found is not None:
            return found
        world.clock.advance_s(1)
    raise AssertionError("nothing was compacted")


def _ignore(compaction_id: object, reason: str) -> None:
    """Do nothing: no part is dropped here."""


CHECKS: tuple[Callable[[World], None], ...] = (
    check_nothing_is_there_at_first,
    check_planning_changes_nothing,
    check_proposals,
    check_held_back_is_not_proposed,
    check_specs_travel,
    check_what_is_shown_is_json,
    check_reads_are_observed,
    check_a_compaction_loses_nothing,
    check_commits_happen_once,
    check_an_older_coordinator_commits_nothing,
    check_what_changed_meanwhile_is_kept,
    check_kills_lose_nothing,
)
