"""Who changes the table: writers that append and rewrite, and people that make and drop branches and tags,
and roll back."""

from __future__ import annotations

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from simulator.history.lake import (
    LOCATION,
    DataFile,
    Entry,
    Manifest,
    new_snapshot,
    set_ref,
)
from simulator.history.people import Unwanted, now_and_then
from simulator.history.world import Process

_MAX_MANIFESTS = 4
_MAX_REFS = 5


def run_writer(process: Process) -> None:
    """Append, or rewrite some files, now and then."""
    pause_ms = process.world.scenario.writer_pause_ms
    now_and_then(process, pause_ms, lambda: write(process, process.catalog.load_table(()), MAIN_BRANCH))


def write(process: Process, table: Table, branch: str) -> None:
    """A snapshot on top of a branch, as it was loaded."""
    head = table.metadata.snapshot_by_name(branch)
    if head is None:
        raise Unwanted(f"there is no {branch}")
    files, rng = process.files, process.rng
    manifests = files.manifests_of(head)
    new = [DataFile(_path(process, "data", ".parquet")) for _ in range(rng.randint(1, 2))]
    written: dict[str, tuple[Entry, ...]] = {}
    if len(manifests) >= _MAX_MANIFESTS or (manifests and rng.random() < 0.4):
        merged = rng.sample(manifests, rng.randint(1, len(manifests)))
        live = [entry for manifest in merged for entry in files.live_entries(manifest)]
        survivors = [entry for entry in live if rng.random() < 0.4]
        manifests = [manifest for manifest in manifests if manifest not in merged]
        if survivors:
            written[_path(process, "metadata", "-m0.avro")] = tuple(survivors)
    written[_path(process, "metadata", "-m1.avro")] = tuple(Entry(file) for file in new)
    manifests += [Manifest(path) for path in written]
    list_path = _path(process, "metadata", ".avro")

    def put_files() -> None:
        files.files.data.update(file.file_path for file in new)
        files.files.manifests.update(written)
        files.files.lists[list_path] = tuple(manifests)

    process.call(f"write {list_path}", put_files)
    back_ms = process.world.scenario.back_ms
    at_ms = max(process.clock.now_ms(), table.metadata.last_updated_ms - back_ms)
    snapshot = new_snapshot(table.metadata, head.snapshot_id, rng.getrandbits(62), list_path, at_ms)
    ref = table.metadata.refs[branch]
    own = {
        "min-snapshots-to-keep": ref.min_snapshots_to_keep,
        "max-snapshot-age-ms": ref.max_snapshot_age_ms,
        "max-ref-age-ms": ref.max_ref_age_ms,
    }
    updates = (AddSnapshotUpdate(snapshot=snapshot), set_ref(branch, snapshot.snapshot_id, rules=own))
    _commit(process, table, branch, head, updates)
    process.count("event: snapshot" if branch == MAIN_BRANCH else "event: snapshot of a branch")


def run_person(process: Process) -> None:
    """Make, move and drop branches and tags now and then."""
    pause_ms = process.world.scenario.ref_pause_ms
    if pause_ms:
        now_and_then(process, pause_ms, lambda: _meddle(process, process.catalog.load_table(())))


def _meddle(process: Process, table: Table) -> None:
    rng, metadata = process.rng, table.metadata
    others = sorted(name for name in metadata.refs if name != MAIN_BRANCH)
    branches = [name for name in others if metadata.refs[name].snapshot_ref_type == SnapshotRefType.BRANCH]
    chosen: Snapshot = rng.choice(metadata.snapshots)
    share = rng.random()
    if others and (share < 0.35 or len(others) >= _MAX_REFS):
        name = rng.choice(others)
        gone = metadata.snapshot_by_id(metadata.refs[name].snapshot_id)
        _commit(process, table, name, gone, (RemoveSnapshotRefUpdate.model_validate({"ref-name": name}),))
        process.count("event: ref dropped")
    elif branches and share < 0.5:
        write(process, table, rng.choice(branches))
    elif 0.5 <= share < 0.58:
        head = metadata.current_snapshot()
        _commit(process, table, MAIN_BRANCH, head, (set_ref(MAIN_BRANCH, chosen.snapshot_id),))
        process.count("event: rollback")
    else:
        is_tag = rng.random() < 0.6
        name = f"{'tag' if is_tag else 'branch'}-{rng.getrandbits(40):x}"
        own: dict[str, int | None] = {"max-ref-age-ms": rng.choice((None, None, 30_000))}
        if not is_tag:
            own["min-snapshots-to-keep"] = rng.choice((None, 1, 2))
        update = set_ref(name, chosen.snapshot_id, is_tag=is_tag, rules=own)
        _commit(process, table, name, None, (update,))
        process.count(f"event: {'tag' if is_tag else 'branch'} made")


def _commit(
    process: Process, table: Table, ref: str, seen: Snapshot | None, updates: tuple[TableUpdate, ...]
) -> None:
    """Commit, if the ref is still as it was seen."""
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId.model_validate(
            {"ref": ref, "snapshot-id": None if seen is None else seen.snapshot_id}
        ),
    )
    try:
        process.catalog.commit_table(table, requirements, updates)
    except ValueError as error:
        raise Unwanted(str(error)) from error


def _path(process: Process, folder: str, end: str) -> str:
    return f"{LOCATION}/{folder}/{process.ids.uuid().hex}{end}"
