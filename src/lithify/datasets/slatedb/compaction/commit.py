"""Publishing the outputs of compactions in the manifest, as one atomic step for any number of them.

1. Take the manifest seen last; stop if its compactor epoch is not ours.
2. Validate every compaction against it; refused ones are left out. Nothing is refused before the latest
   manifest has been read.
3. Publish the transformed manifest as the next version, with a checkpoint that pins the version it replaces:
   that one lists the inputs, so readers and iterators keep those they are using until it expires. It expires
   by the clock that is ahead, of this machine's and the store's, because collectors go by another one.
4. If the publication took more than half of the checkpoint's life, because the store was away, lengthen it.

On a conflict, all starts again from the latest manifest: what is pinned is always the version that is
replaced. SlateDB's own coordinator pins with a version of its own, unmodified but for the checkpoint, before
it publishes the outputs. One version does as well: collectors keep the latest manifest, so the one that is
replaced cannot go before the checkpoint is there, and a client reads what a checkpoint pins under its number,
whatever that is.

The new manifest is always a function of the version before it and the compactions, so whatever the writer,
readers or garbage collectors published meanwhile stays.
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
"""Times the checkpoint of a commit is lengthened because publishing it took too long."""


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
        """`latest_ms` tells the time by this machine's clock or the store's, whichever is ahead: with a clock
        that is behind, a checkpoint would have ended before it is published."""
        self._files = files
        self._latest_ms = latest_ms
        self._ids = ids
        self._epoch = epoch
        self._lifetime_s = checkpoint_lifetime_s
        self._verdicts: Mapping[Ulid, str | None] = {}
        self._pin: Checkpoint | None = None

    def publish(self, compactions: Sequence[SlateCompaction]) -> Mapping[Ulid, str | None]:
        """Publish the outputs of all `compactions` that are still valid. For each: why it was refused, `None`
        when it is in."""

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
        """Give the checkpoint its life again, while more than half of it went by before it was published. The
        outputs are in, whatever comes of that."""
        for _ in range(MAX_RENEWALS):
            if self._pin is None or self._is_fresh(self._pin):
                return
            try:
                self._files.update_manifest(self._renewed)
            except StoreError as error:
                url = self._files.url
                _log.warning("%s: the checkpoint of a commit could not be lengthened: %s", url, error)
                return
        _log.warning(
            "%s: publishing takes so long that readers may lose the inputs of a commit before "
            "checkpoint_lifetime (%d s) is over; is the store very slow?",
            self._files.url,
            self._lifetime_s,
        )

    def _renewed(self, _: int, manifest: Manifest) -> Manifest | None:
        """The manifest with the checkpoint renewed; `None` where somebody has taken it out: what it pinned
        may be gone."""
        assert self._pin is not None
        pin = self._new_checkpoint(self._pin.manifest_id, self._pin)
        left = tuple(c for c in manifest.checkpoints if c.id != pin.id)
        if len(left) == len(manifest.checkpoints):
            return None
        self._pin = pin
        return with_checkpoint(replace(manifest, checkpoints=left), pin)

    def _is_fresh(self, pin: Checkpoint) -> bool:
        """Whether it has at least half of its life before it."""
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

    Refused is also what would make a manifest that clients cannot use: a worker's outputs may be anything.
    Gives why each was refused (`None`: it is in) and the new manifest (`None`: nothing to publish).
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
    """Whether the manifest shows what this compaction's commit makes of it, before a crash or behind a lost
    answer. Drains, and moves of runs alone, leave nothing that tells.

    0. None of its L0 sources is there any more. An SST can be in L0 and in a run, if somebody put it there.
    1. The destination consists of its outputs, or has the L0 views it moved: ids are random, so nothing else
       can have put them there.
    2. Without outputs: the destination is empty, and all other sources are gone. L0 sources can also go into
       another run, but only into a newer one (an older one would have taken the destination with it), so
       the destination must be the newest.
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
