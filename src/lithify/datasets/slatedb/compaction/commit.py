"""Publishing the outputs of any number of compactions in the manifest, as one atomic step.

1. Take the cached manifest; stop if its compactor epoch is not this coordinator's.
2. Validate every compaction against it and leave out the refused ones. Nothing is refused before the latest
   manifest has been read.
3. Publish the transformed manifest as the next version, with a checkpoint that pins the replaced version.
   That version lists the inputs, so readers and iterators keep the inputs they are using until the checkpoint
   expires. The expiry time is taken from this machine's clock or the store's, whichever is ahead, because
   collectors use another clock.
4. If publishing took more than half of the checkpoint's lifetime, because the store was unavailable, extend
   the checkpoint.

After a conflict, start again from the latest manifest: the pinned version is always the replaced one.
SlateDB's own coordinator first publishes a version of its own that changes only the checkpoint, and then the
outputs. One version is enough: collectors keep the latest manifest, so the replaced one cannot be deleted
before the checkpoint exists, and a client reads a pinned manifest by its number, whatever that is.

The new manifest is always a function of its predecessor and the compactions, so it keeps everything that the
writer, readers or garbage collectors published meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lithify.base.errors import Fenced, StoreError
from lithify.base.ids import Ids, Ulid
from lithify.datasets.slatedb.compaction.transform import (
    apply_compaction,
    apply_trivial_move,
    with_checkpoint,
)
from lithify.datasets.slatedb.compaction.validate import validate
from lithify.datasets.slatedb.files import DatabaseFiles
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.format.manifest import manifest_problem
from lithify.datasets.slatedb.model import Checkpoint, Manifest, TieredSpec
from lithify.protocol.model import CompactionState, Ledger

_log = logging.getLogger("lithify")

MAX_CHECKPOINT_TIME_S = (1 << 32) - 1
"""The format's last second, in the year 2106."""
MAX_RENEWALS = 5
"""How many times a commit's checkpoint is extended because publishing it took too long."""


class Commit:
    """One commit by the coordinator of `epoch`."""

    def __init__(
        self,
        files: DatabaseFiles,
        latest_ms: Callable[[], int],
        ids: Ids,
        epoch: int,
        checkpoint_lifetime_s: int,
    ) -> None:
        """Create a commit. `latest_ms` returns the time by this machine's clock or the store's, whichever is
        ahead: by a clock that is behind, a checkpoint could expire before it is published."""
        self._files = files
        self._latest_ms = latest_ms
        self._ids = ids
        self._epoch = epoch
        self._lifetime_s = checkpoint_lifetime_s
        self._verdicts: Mapping[Ulid, str | None] = {}
        self._pin: Checkpoint | None = None

    def publish(self, compactions: Sequence[SlateCompaction]) -> Mapping[Ulid, str | None]:
        """Publish the outputs of all `compactions` that are still valid. Return for each why it was refused,
        or `None` if it was committed."""

        def publish_outputs(manifest_id: int, manifest: Manifest) -> Manifest | None:
            _check_epoch(manifest, self._epoch, self._files.url)
            self._verdicts, result = _judge(compactions, manifest)
            self._pin = None if result is None else self._new_checkpoint(manifest_id)
            return None if result is None or self._pin is None else with_checkpoint(result, self._pin)

        verdicts, _ = _judge(compactions, self._files.known()[1])
        if any(refusal is not None for refusal in verdicts.values()):
            self._files.latest_manifest()
        self._files.update_manifest(publish_outputs)
        self._lengthen()
        return self._verdicts

    def _lengthen(self) -> None:
        """Renew the checkpoint as long as more than half of its lifetime passed before it was published. The
        outputs are committed, regardless of the result."""
        for _ in range(MAX_RENEWALS):
            if self._pin is None or self._is_fresh(self._pin):
                return
            try:
                self._files.update_manifest(self._renewed)
            except StoreError as error:
                url = self._files.url
                _log.warning("%s: the checkpoint of a commit could not be extended: %s", url, error)
                return
        _log.warning(
            "%s: publishing takes so long that readers may lose the inputs of a commit before "
            "checkpoint_lifetime (%d s) is over; check whether the store is slow",
            self._files.url,
            self._lifetime_s,
        )

    def _renewed(self, _: int, manifest: Manifest) -> Manifest | None:
        """Return the manifest with the checkpoint renewed, or `None` if another process has removed the
        checkpoint: the version it pinned may be deleted."""
        assert self._pin is not None
        pin = self._new_checkpoint(self._pin.manifest_id, self._pin)
        left = tuple(c for c in manifest.checkpoints if c.id != pin.id)
        if len(left) == len(manifest.checkpoints):
            return None
        self._pin = pin
        return with_checkpoint(replace(manifest, checkpoints=left), pin)

    def _is_fresh(self, pin: Checkpoint) -> bool:
        """Return whether at least half of the checkpoint's lifetime remains."""
        age_s = self._latest_ms() // 1000 - pin.create_time_s
        return 2 * age_s <= self._lifetime_s

    def _new_checkpoint(self, manifest_id: int, old: Checkpoint | None = None) -> Checkpoint:
        now_s = self._latest_ms() // 1000
        expires_s = min(now_s + self._lifetime_s, MAX_CHECKPOINT_TIME_S)
        return Checkpoint(self._ids.uuid() if old is None else old.id, manifest_id, expires_s, now_s)


def _check_epoch(manifest: Manifest, epoch: int, url: str) -> None:
    if manifest.compactor_epoch != epoch:
        raise Fenced(
            f"another coordinator (epoch {manifest.compactor_epoch}) has taken over {url}; "
            f"this one (epoch {epoch}) stops"
        )


def _judge(
    compactions: Sequence[SlateCompaction], manifest: Manifest
) -> tuple[dict[Ulid, str | None], Manifest | None]:
    """Validate each compaction against the manifest as the earlier ones of the batch leave it.

    A compaction is also refused if it would make a manifest that clients cannot use: a worker's outputs may
    be anything. Return why each was refused (`None`: committed) and the new manifest (`None`: nothing to
    publish).
    """
    verdicts: dict[Ulid, str | None] = {}
    result: Manifest | None = None
    for compaction in compactions:
        if is_committed(compaction, manifest):
            verdicts[compaction.id] = None
            continue
        refusal = validate(compaction, manifest, Ledger(0, (compaction,)))
        if refusal is None:
            changed = _apply(manifest, compaction)
            refusal = manifest_problem(changed)
            if refusal is None:
                manifest = result = changed
        verdicts[compaction.id] = refusal
    return verdicts, result


def _apply(manifest: Manifest, compaction: SlateCompaction) -> Manifest:
    spec = compaction.spec
    if isinstance(spec, TieredSpec) and compaction.state is CompactionState.SUBMITTED:
        return apply_trivial_move(manifest, spec)  # no worker was needed
    return apply_compaction(manifest, spec, compaction.outputs)


def is_committed(compaction: SlateCompaction, manifest: Manifest) -> bool:
    """Return whether the manifest shows the result of this compaction's commit, made before a crash or behind
    a lost answer. Drains, and moves of runs alone, leave no evidence.

    0. None of its L0 sources is still in L0. An SST can be both in L0 and in a run if another program put it
       there.
    1. The destination consists of its outputs, or has the L0 views it moved: ids are random, so only this
       commit can have put them there.
    2. Without outputs: the destination is empty, and all other sources are gone. L0 sources can also be
       merged into another run, but only into a newer one (an older one would have consumed the destination
       too), so the destination must be the newest.
    """
    spec = compaction.spec
    tree = manifest.tree(spec.segment)
    if tree is None or not isinstance(spec, TieredSpec):
        return False
    run = next((run for run in tree.runs if run.id == spec.destination), None)
    if run is None or {view.id for view in tree.l0}.intersection(spec.l0_view_ids):
        return False
    if compaction.state is CompactionState.SUBMITTED:
        return bool(spec.l0_view_ids) and {view.id for view in run.views}.issuperset(spec.l0_view_ids)
    if compaction.outputs:
        return [view.sst.id for view in run.views] == [sst.id for sst in compaction.outputs]
    is_gone = not {other.id for other in tree.runs if other.id != run.id}.intersection(spec.sorted_runs)
    is_newest = run is tree.runs[0]
    return (
        compaction.state is CompactionState.COMPACTED
        and not run.views
        and is_gone
        and (is_newest or not spec.l0_view_ids)
    )
