"""Checks of a database by its state files alone. They write nothing.

1. The state files can be listed, read and decoded.
2. Every SST that the latest manifest names exists, and so does every manifest that a checkpoint pins.
3. A coordinator is alive if there is work; workers that hold compactions send heartbeats.
4. The filters of the newest SST can be written for outputs too.
5. No compaction stays in a state longer than its owner needs to notice it; none has failed for good.
6. The writer is not at its limit of L0 SSTs, and not close to it.
7. The clocks that wrote heartbeats and SST ids are not ahead of this machine's.
8. Old versions do not pile up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lithify.base.backlog import Backlog
from lithify.base.clock import SystemClock
from lithify.base.errors import CorruptObject, DatasetNotFound, Refused, StoreError, Unsupported
from lithify.base.ids import RandomIds, ulid_ms
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.clients import why_too_old
from lithify.datasets.slatedb.format.paths import parse_sst_key
from lithify.datasets.slatedb.format.transformed import check_not_transformed
from lithify.datasets.slatedb.mirroring.checks import check_mirror
from lithify.datasets.slatedb.mirroring.target import MirrorTarget
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.checks import check_clocks, check_compactions, check_versions, heartbeats
from lithify.protocol.finding import Finding, advice, ok, problem, warning
from lithify.protocol.status import Status

SOON_MS = 120_000
_SHOWN = 3


def check_database(
    dataset: SlateDataset, find: Callable[[SlateDataset], Status], now_ms: int
) -> Iterator[Finding]:
    """Return all findings about `dataset`. The first says whether there is a sound database at all."""
    try:
        manifest, ledger = dataset.snapshot(), dataset.ledger()
        found = find(dataset)
    except Unsupported as error:
        yield problem(
            "state files", str(error), "use a version of Lithify that supports this version of SlateDB"
        )
        return
    except DatasetNotFound as error:
        mirror = MirrorTarget(dataset.store, dataset.paths.root, SystemClock(), RandomIds())
        found_mirror = list(check_mirror(mirror, now_ms))
        if found_mirror:
            yield from found_mirror
            return
        yield problem(
            "state files", str(error), "create it by opening it with SlateDB once, or correct the URL"
        )
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
            advice(
                error,
                "check credentials, endpoint and region, and that this user may list and read the folder",
            ),
        )
        return
    yield ok("state files", f"the manifest (epoch {manifest.compactor_epoch}) and the ledger are sound")
    yield from _check_clients(manifest)
    yield from _check_objects(dataset, manifest)
    try:
        check_not_transformed(dataset.store, dataset.paths, manifest, dataset.url)
    except Refused as error:
        says, _, do = str(error).rpartition("; ")
        yield problem("blocks", says, do)
    else:
        yield from _check_filters(dataset, manifest)
    yield from check_compactions(found)
    yield from (check_backlog(p) for p in found.backlog)
    flushes = [(ulid_ms(view.id), "the writer") for tree in manifest.trees() for view in tree.l0[:1]]
    yield check_clocks([*heartbeats(ledger), *flushes], found.store_ms, now_ms)
    yield _check_versions(dataset)


# Clients


def _check_clients(manifest: Manifest) -> Iterator[Finding]:
    if too_old := why_too_old(manifest):
        says, _, do = too_old.rpartition("; ")
        yield problem("clients", says, do)


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
            advice(error, "allow this user to list them (S3: s3:ListBucket)"),
        )
        return
    missing = sorted(named - there)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield problem(
            "objects",
            f"the manifest names SSTs that do not exist: {', '.join(missing[:_SHOWN])}{more}",
            "stop compaction and garbage collection, and restore them from a backup or from old versions in "
            "the store; check for a lifecycle rule or a clean-up job that deletes by age",
        )
    else:
        yield ok("objects", f"all {len(named)} SSTs that the manifest names exist")
    if pinned:
        yield warning(
            "checkpoints",
            f"checkpoints pin manifests that do not exist: {', '.join(map(str, sorted(pinned)))}",
            "delete these checkpoints with SlateDB's admin tool, or wait until they expire; until then "
            "garbage collection deletes nothing",
        )


# Filters


def _check_filters(dataset: SlateDataset, manifest: Manifest) -> Iterator[Finding]:
    """Return why compactions are refused because of the filters of their inputs, if they are."""
    from lithify.datasets.slatedb.format.policies import check_filters  # imports the compiler

    try:
        check_filters(dataset.store, dataset.paths, manifest, dataset.options.filter_rules)
    except Refused as error:
        says, _, do = str(error).partition("; ")
        yield problem("filters", says, do)
    except (CorruptObject, StoreError):
        return  # compactions of these inputs say so; filters are made anew


# Backlog, versions


def check_backlog(p: Backlog) -> Finding:
    """Return whether the writer is close to its limit (pure)."""
    check, count = "backlog", f"{p.unit} has {p.waiting} L0 SSTs of {p.limit}"
    do = (
        "add workers or cores; set the writer's limit with --set slatedb.l0_max_ssts=N if it is not "
        f"{p.limit}; to gain time, raise it in the writer's settings"
    )
    if p.waiting >= p.limit:
        return problem(check, f"{count}: its writer cannot flush, and stalls", do)
    is_half_full = 2 * p.waiting >= p.limit
    if is_half_full and p.stall_ms is not None and p.stall_ms < SOON_MS:
        return warning(
            check, f"{count} and reaches that limit in {p.stall_ms // 1000} s at the present rate", do
        )
    return ok(check, count)


def _check_versions(dataset: SlateDataset) -> Finding:
    try:
        counts = {"manifests": len(dataset.manifest_ids()), "compactions files": len(dataset.ledger_ids())}
    except StoreError as error:
        return warning(
            "versions",
            f"old versions cannot be listed: {error}",
            advice(error, "allow this user to list them"),
        )
    return check_versions(counts, dataset.url, "SlateDB's garbage collector or Lithify's coordinator")
