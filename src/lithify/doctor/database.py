"""What is wrong with a database, from its state files alone. Writes nothing.

1. The state files can be listed, read and decoded.
2. Every SST that the latest manifest names is there, and so is every manifest that a checkpoint pins.
3. A coordinator is alive where there is something to do; workers that hold something are heard.
4. No compaction stays in a state longer than its owner needs to see it; none has failed for good.
5. The writer is not at its limit of L0 SSTs, and not close to it.
6. Clocks that wrote heartbeats and SST ids do not run ahead of this machine's.
7. Old versions do not pile up.
"""

from __future__ import annotations

from collections.abc import Iterator

from lithify.compaction.contract import Pressure
from lithify.compaction.model import State
from lithify.compaction.presence import Presence
from lithify.compaction.status import CompactionStatus
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.ledger import SlateLedger
from lithify.datasets.slatedb.model import Manifest
from lithify.datasets.slatedb.paths import parse_sst_key
from lithify.doctor.finding import Finding, ok, problem, warning
from lithify.errors import CorruptObject, Refused, StoreError, Unsupported
from lithify.ids import ulid_ms
from lithify.status import Status
from lithify.status import status as status_of

MAX_AHEAD_MS = 5_000
MAX_STAY_MS = {State.SUBMITTED: 60_000, State.COMPACTED: 60_000, State.SCHEDULED: 300_000}
"""Longer than that, whoever has to act is not there: a coordinator looks every few seconds; a worker may
be busy with something else for a while."""
SOON_MS = 120_000
MAX_VERSIONS = 2_000
_SHOWN = 3


def check_database(dataset: SlateDataset, now_ms: int, heartbeat_timeout_ms: int) -> Iterator[Finding]:
    """Every finding about `dataset`. The first says whether there is a sound database at all."""
    try:
        manifest, ledger = dataset.snapshot(), dataset.ledger()
        found = status_of(dataset, now_ms, heartbeat_timeout_ms)
    except Unsupported as error:
        yield problem("state files", str(error), "use a Lithify that knows this version of SlateDB")
        return
    except Refused as error:
        yield problem(
            "state files", str(error), "create it by opening it with SlateDB once, or correct the URL"
        )
        return
    except CorruptObject as error:
        yield problem(
            "state files",
            str(error),
            "stop everything that writes to this database, and restore the object from a backup; "
            "`lithify inspect manifest --id N` shows older versions",
        )
        return
    except StoreError as error:
        yield problem(
            "state files",
            f"the state files cannot be read: {error}",
            "check credentials, endpoint and region, and that this user may list and read the folder",
        )
        return
    yield ok("state files", f"the manifest (epoch {manifest.compactor_epoch}) and the ledger are sound")
    yield from _check_objects(dataset, manifest)
    yield from check_coordinator(found)
    yield from (finding for c in found.compactions for finding in check_compaction(c, found))
    yield from check_failures(found)
    yield from (check_pressure(p) for p in found.pressure)
    yield check_clocks(manifest, ledger, now_ms)
    yield _check_versions(dataset)


# Objects


def _check_objects(dataset: SlateDataset, manifest: Manifest) -> Iterator[Finding]:
    external = {sst_id for db in manifest.external_dbs for sst_id in db.sst_ids}
    named = {view.sst.id for tree in manifest.trees() for view in tree.views()} - external
    try:
        listed = dataset.store.list(dataset.paths.compacted_folder)
        there = {parse_sst_key(meta.key) for meta in listed}
        pinned = {c.manifest_id for c in manifest.checkpoints} - set(dataset.manifest_ids())
    except StoreError as error:
        yield problem(
            "objects",
            f"the database's folders cannot be listed: {error}",
            "allow this user to list them (S3: s3:ListBucket)",
        )
        return
    missing = sorted(named - there)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield problem(
            "objects",
            f"the manifest names SSTs that are not there: {', '.join(missing[:_SHOWN])}{more}",
            "stop compaction and garbage collection, and restore them from a backup or from versions the "
            "store keeps; look for a lifecycle rule or a clean-up job that deletes by age",
        )
    else:
        yield ok("objects", f"all {len(named)} SSTs that the manifest names are there")
    if pinned:
        yield warning(
            "checkpoints",
            f"checkpoints pin manifests that are not there: {', '.join(map(str, sorted(pinned)))}",
            "garbage collection deletes nothing until these checkpoints are gone: delete them with SlateDB's "
            "admin tool, or wait until they expire",
        )


# Coordinator and compactions


def check_coordinator(found: Status) -> Iterator[Finding]:
    """Whether somebody coordinates where there is something to do."""
    coordinator, check = found.coordinator, "coordinator"
    waiting = bool(found.compactions or found.plan.proposals)
    start = f"start one: lithify run {found.url}"
    if coordinator.presence is Presence.ALIVE:
        yield ok(check, f"Lithify's coordinator {coordinator.holder} is alive (epoch {coordinator.epoch})")
    elif coordinator.presence is Presence.SLATEDB:
        yield ok(
            check,
            f"SlateDB coordinates (epoch {coordinator.epoch}); whether its process is open cannot be seen",
        )
    elif coordinator.presence is Presence.LOST:
        ended = coordinator.lease_ends_ms or found.at_ms
        yield problem(
            check,
            f"the coordinator {coordinator.holder} has been silent for {(found.at_ms - ended) // 1000} s: it "
            "was killed, or it hangs",
            f"{start}; it takes over by itself and loses nothing",
        )
    elif waiting:
        yield problem(check, "there is something to compact, and no coordinator is running", start)
    else:
        yield ok(check, "no coordinator is running, and there is nothing to do")


def check_compaction(c: CompactionStatus, found: Status) -> Iterator[Finding]:
    """Whether a compaction moves."""
    if c.is_stale:
        age = "never" if c.heartbeat_age_ms is None else f"{c.heartbeat_age_ms // 1000} s ago"
        says = f"compaction {c.id}: its worker {c.worker or '?'} was last heard {age}"
        if found.coordinator.is_alive:
            yield warning(
                "heartbeats",
                says,
                "the coordinator takes it back at its next look and another worker goes on; if this repeats, "
                "look at that worker's log: it is too slow, hangs, or cannot reach the store",
            )
        else:
            yield problem(
                "heartbeats",
                says,
                f"start a coordinator, which takes it back: lithify run {found.url}",
            )
    stay_ms = found.at_ms - (c.since_ms if c.since_ms is not None else found.at_ms)
    if stay_ms > MAX_STAY_MS.get(c.state, stay_ms):
        yield problem(
            "stuck",
            f"compaction {c.id} is {c.state.value} for {stay_ms // 1000} s and waits for {c.waits_for}",
            f"start a worker: lithify worker {found.url}"
            if c.state is State.SCHEDULED
            else f"see that its coordinator runs; start Lithify's with: lithify run {found.url}",
        )
    if c.attempts:
        yield warning(
            "attempts",
            f"compaction {c.id} has failed {c.attempts} times, last because: {c.last_failure}",
            "it is tried again after growing pauses and then given up; `lithify cancel` gives it up now",
        )


def check_failures(found: Status) -> Iterator[Finding]:
    """What was given up after it had been tried; not what somebody cancelled."""
    tried = [f for f in found.failures if f.attempts and not f.is_cancelled]
    for failure in tried[-_SHOWN:]:
        yield warning(
            "given up",
            f"compaction {failure.compaction} was given up after {failure.attempts} attempts: "
            f"{failure.reason}",
            f"remove the cause, then: lithify retry {found.url} {failure.compaction}",
        )


# Backlog, clocks, versions


def check_pressure(p: Pressure) -> Finding:
    """Whether the writer is close to its limit (pure)."""
    check, count = "backlog", f"{p.unit} has {p.l0_ssts} L0 SSTs of {p.l0_max_ssts}"
    do = (
        "add workers or cores; give the writer's own limit with --set l0_max_ssts=N if it is not "
        f"{p.l0_max_ssts}; raise it in the writer's settings to gain time"
    )
    if p.l0_ssts >= p.l0_max_ssts:
        return problem(check, f"{count}: its writer cannot flush, and stalls", do)
    is_half_full = 2 * p.l0_ssts >= p.l0_max_ssts
    if is_half_full and p.stall_ms is not None and p.stall_ms < SOON_MS:
        return warning(check, f"{count} and reaches that in {p.stall_ms // 1000} s at the present rate", do)
    return ok(check, count)


def check_clocks(manifest: Manifest, ledger: SlateLedger | None, now_ms: int) -> Finding:
    """Whether somebody's clock is ahead of this machine's (pure)."""
    beats = [
        (c.worker.last_heartbeat_ms - now_ms, f"worker {c.worker.id}")
        for c in (ledger.active() if ledger is not None else ())
        if c.worker is not None
    ]
    flushes = [(ulid_ms(view.id) - now_ms, "the writer") for tree in manifest.trees() for view in tree.l0[:1]]
    ahead_ms, who = max([*beats, *flushes], default=(0, ""))
    if ahead_ms <= MAX_AHEAD_MS:
        return ok("clocks", "no heartbeat and no SST is from the future")
    return warning(
        "clocks",
        f"the clock of {who} is {ahead_ms / 1000:.0f} s ahead of this machine's",
        "synchronise both (NTP): a dead worker whose clock is ahead is noticed too late, and garbage is "
        "kept too long",
    )


def _check_versions(dataset: SlateDataset) -> Finding:
    try:
        counts = {"manifests": len(dataset.manifest_ids()), "compactions files": len(dataset.ledger_ids())}
    except StoreError as error:
        return warning("versions", f"old versions cannot be listed: {error}", "allow this user to list them")
    name, most = max(counts.items(), key=lambda item: item[1])
    if most <= MAX_VERSIONS:
        return ok("versions", ", ".join(f"{count} {what}" for what, count in counts.items()))
    return warning(
        "versions",
        f"there are {most} {name}: garbage is not collected",
        "run `lithify gc --delete`, and see that SlateDB's garbage collector or Lithify's coordinator runs",
    )
