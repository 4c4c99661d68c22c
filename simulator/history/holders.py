"""Programs that hold a snapshot while they read it, and compactions of ours, which hold by themselves."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.table.snapshots import Snapshot

from lithify.base.errors import HoldLapsed, LithifyError, Replaced
from lithify.datasets.holding import Held
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.iceberg.model import ChunkSpec, IcebergCompaction, IcebergLedger, Lane, SpecPart
from lithify.datasets.maintenance import HoldRequest
from lithify.protocol import transitions
from lithify.protocol.model import Compaction
from simulator.history import rules
from simulator.history.judge import Judge
from simulator.history.people import attempt, insist, now_and_then
from simulator.history.world import Process

_READ_PAUSE_MS = 2_000
_LOOK_MS = 20
"""So often somebody who waits for the worst moment looks whether it has come."""
_WORST_CALLS = 15
"""About so many calls a run makes between publishing the watermark and removing what has lapsed."""


def run_holder(process: Process, judge: Judge) -> None:
    """Hold an old snapshot, read it, and give it up, now and then."""
    maintenance: list[TableMaintenance] = []

    def hold() -> None:
        if not maintenance:
            maintenance.append(TableMaintenance(process.dataset(), process.clock, process.ids))
        _hold(process, judge, maintenance[0])

    now_and_then(process, process.world.scenario.hold_pause_ms, hold)


def _hold(process: Process, judge: Judge, maintenance: TableMaintenance) -> None:
    rng, lease_ms = process.rng, process.world.scenario.lease_ms
    metadata = process.catalog.load_table(()).metadata
    there, head = metadata.snapshots, metadata.current_snapshot()
    chosen = there[min(rng.randrange(len(there)), rng.randrange(len(there)))]
    if head is not None and rng.random() < 0.3:
        chosen = head
    if rng.random() < 0.3:
        process.sleep_ms(rng.randint(1, _READ_PAUSE_MS))
    began_s = process.clock.monotonic_s()
    placed = maintenance.hold(HoldRequest(version=chosen.snapshot_id), lease_ms, None, process.name)
    judge.held(placed)
    process.count("event: held")
    process.log(f"holds {chosen.snapshot_id} as {placed.name}")
    held = Held(maintenance, placed, process.clock, began_s)
    renewals = rng.choice((0, 1, 3))
    try:
        share = rng.random()
        if share < 0.1:  # it is busy with something else, and comes back too late
            process.sleep_ms(lease_ms + rng.randint(1, 2 * lease_ms))
            _renew(process, judge, held)
        elif share < 0.2:
            _wait_for_the_worst_moment(process, judge, held)
            _renew(process, judge, held)
        for path in _files_of(process, held, chosen):
            process.sleep_ms(rng.randint(1, _READ_PAUSE_MS))
            if renewals and rng.random() < 0.3:
                renewals -= 1
                _renew(process, judge, held)
            _read(process, held, chosen, path)
    except HoldLapsed as error:
        process.count("event: hold lapsed")
        process.log(str(error))
    if rng.random() < 0.7:
        judge.given_up(held.placed)
        held.release()
        process.count("event: hold released")


def _wait_for_the_worst_moment(process: Process, judge: Judge, held: Held) -> None:
    """It comes back when the hold has lapsed, and somebody who has found that is about to act on it."""
    hold, lease_ms = held.placed.hold, process.world.scenario.lease_ms
    process.sleep_ms(lease_ms)
    for _ in range(2 * lease_ms // _LOOK_MS):
        if judge.watermark > hold.position:
            break
        process.sleep_ms(_LOOK_MS)
    process.sleep_ms(process.rng.randint(1, _WORST_CALLS * process.world.faults.max_latency_ms))


def _renew(process: Process, judge: Judge, held: Held) -> None:
    until_ms = held.placed.hold.until_ms or 0
    try:
        held.renew()
    except HoldLapsed as error:
        if not judge.has_lapsed(held.placed, until_ms):
            raise process.world.fail(rules.RENEWED, f"{process.name}: {error}") from error
        judge.given_up(held.placed)
        raise
    except LithifyError as error:
        process.log(f"{error}")  # it may be tried again
        return
    judge.held(held.placed)
    process.count("event: hold renewed")


def _files_of(process: Process, held: Held, snapshot: Snapshot) -> list[str]:
    try:
        manifests = process.files.manifests_of(snapshot)
        entries = [entry for manifest in manifests for entry in process.files.live_entries(manifest)]
    except FileNotFoundError as error:
        held.check()
        raise process.world.fail(rules.HOLDS, f"{process.name} does not find {error}") from error
    return [entry.data_file.file_path for entry in entries]


def _read(process: Process, held: Held, snapshot: Snapshot, path: str) -> None:
    try:
        process.files.read_data(path)
    except FileNotFoundError as error:
        held.check()
        text = f"{process.name} holds {snapshot.snapshot_id} and does not find {error}"
        raise process.world.fail(rules.HOLDS, text) from error


def run_compactor(process: Process) -> None:
    """Compact the newest snapshot now and then. What a predecessor has begun is given up first."""
    scenario = process.world.scenario
    if not scenario.compaction_pause_ms:
        return
    dataset: list[IcebergDataset] = []

    def open_it() -> None:
        if not dataset:
            dataset.append(process.dataset())
            process.sleep_ms(process.rng.randint(1, scenario.compaction_pause_ms))
        try:
            if dataset[0].stored_ledger() is None:  # it was removed
                dataset[0]._ledger.take_epoch(lambda taking: None)
            dataset[0].update_ledger(_end_all)
        except Replaced:
            dataset.clear()  # as in a process that starts again
            raise

    insist(process, open_it)
    now_and_then(process, scenario.compaction_pause_ms, lambda: _compact(process, dataset[0], open_it))
    insist(process, open_it)


def _compact(process: Process, dataset: IcebergDataset, end: Callable[[], None]) -> None:
    rng, now_ms = process.rng, process.clock.now_ms()
    head = dataset.load().metadata.current_snapshot()
    assert head is not None, "a table begins with a snapshot"
    spec = ChunkSpec("task", head.snapshot_id, (), (SpecPart(Lane(0, ""), (), ()),), 0)

    def submit(ledger: IcebergLedger) -> IcebergLedger:
        if ledger.active():
            return ledger
        compaction_id = process.ids.ulid(transitions.next_id_ms(ledger, now_ms))
        new: IcebergCompaction = Compaction(compaction_id, spec)
        return transitions.submit(ledger, new)

    if attempt(process, lambda: dataset.update_ledger(submit)):
        process.count("event: compaction")
        for _ in range(rng.randint(1, 10)):
            process.sleep_ms(rng.randint(1, 4 * _READ_PAUSE_MS))
    insist(process, end)


def _end_all(ledger: IcebergLedger) -> IcebergLedger:
    for compaction in ledger.active():
        ledger = transitions.fail(ledger, compaction.id)
    return transitions.trim(ledger) if ledger.compactions else ledger
