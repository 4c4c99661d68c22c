"""One run: a table that many change, read and cut off while things go wrong, then peace, then nothing may be
left over.

1. The table is made, and a ledger beside it.
2. For `BUSY_MS` everybody does what he does. The judge sees all of it.
3. Then nothing goes wrong any more, and everybody ends what he has begun: readers come to the end of the
   table, holds are given up or lapse, compactions end. Nobody runs the expiry.
4. Then it is run a few times, with a grace period, or a day, between. No file that only expired snapshots
   named is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyiceberg.table.refs import MAIN_BRANCH

from lithify.datasets.iceberg.maintenance.expire import DONE, MIN_UNCHECKED_GRACE_MS, ExpireOptions
from lithify.datasets.iceberg.maintenance.expire import ExpiryOutcome as RunOutcome
from lithify.datasets.iceberg.maintenance.expiry_policy import MAX_AGE, MIN_KEPT
from lithify.datasets.iceberg.maintenance.pending import ABANDONED_MS, Pending
from simulator.core.outcome import Outcome
from simulator.core.recording import played
from simulator.history import rules
from simulator.history.holders import run_compactor, run_holder
from simulator.history.judge import Judge
from simulator.history.people import insist, seat
from simulator.history.removal import remove_folder
from simulator.history.replaced import replacements
from simulator.history.runs import Runs, run_by_hand, run_coordinator
from simulator.history.scenario import BUSY_MS, SETTLE_MS
from simulator.history.streams import Stream
from simulator.history.world import Process, World
from simulator.history.writers import run_person, run_writer, write

_OLD_MS = 3 * 3_600_000
"""Long enough for everything to be older than it is kept, whatever clocks said."""


def simulate(seed: int, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play one seed. `trace` is given a line for everything that happens."""
    world = World(seed, trace=trace)
    return played(world, replacements(world), lambda: _play(world))


def _play(world: World) -> None:
    scenario, until_ms = world.scenario, world.now_ms + BUSY_MS
    properties = {
        MAX_AGE: str(scenario.max_age_ms),
        MIN_KEPT: str(scenario.min_kept),
        "write.metadata.previous-versions-max": str(scenario.max_log),
    }
    world.lake.create(properties, world.now_ms)
    world.watcher = judge = Judge(world)
    _begin(world, judge)
    world.scheduler.run_until(until_ms)
    world.calm()
    world.scheduler.run_until(world.now_ms + SETTLE_MS)
    is_done: list[bool] = []
    world.scheduler.spawn(lambda: seat(world, "finisher", lambda p: is_done.append(_finish(p, judge))))
    world.scheduler.run_until(world.now_ms + _OLD_MS + 2 * ABANDONED_MS)
    if not is_done:
        raise world.fail(rules.ENDS, "the last runs do not come to an end")


def _begin(world: World, judge: Judge) -> None:
    scenario, faults = world.scenario, world.faults
    world.faults = type(faults)()

    def make_ledger() -> None:
        world.process("maker").dataset()._ledger.take_epoch(lambda taking: None)
        world.faults = faults

    world.scheduler.spawn(make_ledger)
    world.scheduler.run_until(world.now_ms + 1_000)
    bodies: list[tuple[str, Callable[[Process], None]]] = [("writer", run_writer)] * scenario.writers
    bodies += [("coordinator", run_coordinator)] * scenario.coordinators
    bodies += [("person", run_person), ("compactor", run_compactor)]
    bodies += [("person by hand", lambda process: run_by_hand(process, judge))]
    bodies += [("holder", lambda process: run_holder(process, judge))] * scenario.holders
    bodies += [("stream", Stream(world, judge, number).run) for number in range(scenario.streams)]
    if scenario.removal:
        world.scheduler.spawn(lambda: remove_folder(world, judge))
    for kind, body in bodies:
        world.scheduler.spawn(partial(seat, world, kind, body))


def _finish(process: Process, judge: Judge) -> bool:
    """The last runs, with what has to pass between them."""
    world, scenario = process.world, process.world.scenario
    wait_ms = max(scenario.grace_ms, MIN_UNCHECKED_GRACE_MS) + 1
    runs, outcomes = Runs(process), list[RunOutcome | None]()
    for age_ms in (_OLD_MS, ABANDONED_MS):  # something new, so that there is something to expire
        process.sleep_ms(age_ms)
        insist(process, lambda: write(process, process.catalog.load_table(()), MAIN_BRANCH))
        process.sleep_ms(scenario.max_age_ms + 1)
        for _ in range(2):
            if judge.was_removed:
                judge.accepted()
            refused_late_record = world.has_late_record and RunOutcome.STATE_LOST in outcomes
            accepts = judge.was_removed or refused_late_record
            outcomes.append(runs.run(ExpireOptions(grace_ms=scenario.grace_ms, accept_loss=accepts)))
            process.sleep_ms(wait_ms)
    is_idle = outcomes[-1] is not RunOutcome.HELD or judge.has_readers
    if outcomes[-1] not in DONE or not is_idle:
        raise world.fail(rules.ENDS, f"the last runs ended with {outcomes}")
    dataset = process.dataset()
    entries = Pending(process.store, dataset.own_folder, process.clock, process.ids).read()
    blocked = frozenset(s for entry in entries if entry.blocked for s in entry.snapshots)
    if (blocked and scenario.is_exact) or any(not entry.blocked for entry in entries):
        raise world.fail(rules.LEFT, f"entries still wait: {entries}")
    parts = {
        meta.key.rpartition("/")[2] for meta in process.store.list(f"{dataset.own_folder}/pending-files")
    }
    is_whole = {part.partition("-")[0] for part in parts} == {str(entry.id) for entry in entries}
    if not is_whole and not judge.was_removed:
        raise world.fail(rules.LEFT, f"the lists of files {sorted(parts)} are left of {entries}")
    if (violation := judge.left(blocked)) is not None:
        raise violation
    return True
