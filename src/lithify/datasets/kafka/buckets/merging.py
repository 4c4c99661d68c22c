"""Merges the objects of a chunk of a topic in a broker's bucket into another folder, inside a Spark task.

For each piece of the chunk:

1. Records are kept as in segments (`retention.py`), except transaction markers. Data of decided transactions
   is written without a transaction, so its marker decides nothing any more: it is removed, unless a copy may
   still have the data.
2. Neighbours are merged until their kept bytes reach the target size. A merged object has the name of the
   first and extends to the end of the last. Objects are not merged across a gap in the offsets: a late object
   may fill it. Kept markers are not merged, and keep their bytes.
3. Objects that would not change stay as they are. No empty batch is written: readers would wait at it for
   ever.

The topic itself is not changed. A manifest (`manifest.py`) next to the merged objects has the action for each
object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.buckets.manifest import BucketManifest, ManifestAction, Planned
from lithify.datasets.kafka.cleaning.retention import Rules, dropped, reasons
from lithify.datasets.kafka.cleaning.tasks import (
    GroupPlan,
    Movements,
    Output,
    RewriteTask,
    TaskResult,
    matched_offsets,
    reporting,
)
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.format.kernel.layout import (
    ABORT,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    MAX_OFFSET_DELTA,
    TRANSACTIONAL,
    Records,
)
from lithify.datasets.kafka.format.kernel.retaining import Reasons, RemovalReason
from lithify.datasets.kafka.format.kernel.rewrite import Flags
from lithify.datasets.kafka.format.record_batches import RecordBatches, between, decode, merged, rebased
from lithify.datasets.kafka.format.transactions import fates
from lithify.datasets.kafka.layouts.contract import ObjectChunk
from lithify.datasets.kafka.layouts.objects import ReadObject, joined, object_name, read_pieces
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MANIFEST_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class ObjectMergeTask:
    """A chunk to merge."""

    rewrite: RewriteTask
    """Its only segment is the chunk; its target is a folder outside the topic."""
    target_bytes: int
    """Desired size of a merged object."""
    stays: bool = False
    """Whether the whole chunk stays as it is."""
    kept_marker: int | None = None
    """Last offset of a marker that must stay, because the data that it decides stays."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Neighbouring objects that become one, by their indexes in the piece."""

    first: int
    last: int
    """Exclusive."""


def manifest_key(folder: str, base_offset: int) -> str:
    """Return the key of the manifest of the chunk with this first offset."""
    return join(folder, f"{base_offset:020d}{MANIFEST_SUFFIX}")


def merge_chunk(task: ObjectMergeTask) -> TaskResult:
    """Write the chunk's merged objects and its manifest. Runs inside a Spark task."""
    return reporting(task.rewrite.work, lambda own, movements: _merge(task, own, movements))


def _merge(task: ObjectMergeTask, own: ObjectStore, movements: Movements) -> TaskResult:
    rewrite = task.rewrite
    source, target = rewrite.work.source.open(), rewrite.work.target
    plan = GroupPlan.decode(own.get(rewrite.plan), rewrite.plan)
    passed, after, rows = plan.passed, rewrite.base_offset - 1, Counter[str]()
    dead, pinned = (matched_offsets(own, rewrite, suffix) for suffix in (".dead", ".pinned"))
    planned: list[Planned] = []
    new_bytes = 0
    (chunk,) = rewrite.segments
    assert isinstance(chunk, ObjectChunk), chunk
    if task.stays:
        planned = [Planned(one.base_offset, one.etag or "", ManifestAction.STAY) for one in chunk.objects]
        new_bytes = chunk.size_bytes
    for piece in () if task.stays else read_pieces(source, chunk):
        planned += [
            Planned(one.base_offset, one.etag, ManifestAction.LEFTOVER) for one in piece if one.is_leftover
        ]
        objects = [one for one in piece if not one.is_leftover]
        name, data = joined(chunk.key.rpartition("/")[0], piece)
        movements.moved(len(data), 0)
        if not objects:
            continue
        found = decode(data, name, after=after)
        if len(found.batches) != len(objects):
            raise CorruptObject(name, f"{len(objects)} objects have {len(found.batches)} batches")
        after = int(found.batches["last_offset"][-1])
        what, passed = fates(found.batches, plan.aborted, passed)
        why = reasons(found, what, rewrite.rules, dead, pinned)
        why = _with_markers(found, why, rewrite.rules, task.kept_marker)
        keep = why == RemovalReason.STAYS
        rows.update(rows_in=len(found.records), rows_out=int(keep.sum()))
        rows.update(dropped(np.bincount(why, minlength=len(RemovalReason))))
        for group in cut(found, keep, task.target_bytes):
            parts = objects[group.first : group.last]
            batch = _as_one(found, keep, group, rewrite.rules.new_horizon_ms)
            action = ManifestAction.DELETE if batch is not None and not batch else ManifestAction.PUT
            if batch is None:
                action = ManifestAction.STAY
                new_bytes += len(parts[0].data)
            elif batch:
                own.put(join(target, object_name(parts[0].base_offset)), rebased(batch, 0))
                movements.moved(0, len(batch))
                new_bytes += len(batch)
            batches = found.batches[group.first : group.last]
            planned += _planned(parts, action, batches)
    planned.sort(key=lambda one: one.base_offset)
    key = manifest_key(target, rewrite.base_offset)
    own.put(key, BucketManifest(tuple(planned)).encode())
    return movements.result(Output(key, new_bytes), rows=rows)


def cut(found: RecordBatches, keep: Flags, target_bytes: int) -> list[Merged]:
    """Return the groups of batches that become one batch each (pure)."""
    batches, bytes_left, count = found.batches, _bytes_left(found, keep), _kept(found, keep)
    alone = (batches["attributes"] & CONTROL != 0) & (count > 0)
    groups: list[Merged] = []
    first, size = 0, 0.0
    for at in range(len(batches)):
        is_hole = at > first and batches["base_offset"][at] != batches["last_offset"][at - 1] + 1
        is_full = size > 0 and bytes_left[at] > 0 and size + bytes_left[at] > target_bytes
        span = int(batches["last_offset"][at] - batches["base_offset"][first])
        if at > first and (is_hole or is_full or span > MAX_OFFSET_DELTA or alone[at] or alone[at - 1]):
            groups.append(Merged(first, at))
            first, size = at, 0.0
        size += bytes_left[at]
    return [*groups, Merged(first, len(batches))]


def _planned(parts: Sequence[ReadObject], action: ManifestAction, batches: Records) -> list[Planned]:
    """Return the actions for the objects of a group, one batch each; `action` is that of the first."""
    is_marker = batches["attributes"] & CONTROL != 0
    planned = [
        Planned(one.base_offset, one.etag, ManifestAction.MARKER if decides else ManifestAction.DELETE)
        for one, decides in zip(parts, is_marker, strict=True)
    ]
    if action is not ManifestAction.DELETE:
        last_offset = int(batches["last_offset"][-1]) if action is ManifestAction.PUT else 0
        planned[0] = replace(planned[0], action=action, last_offset=last_offset)
    return planned


def _as_one(found: RecordBatches, keep: Flags, group: Merged, horizon_ms: int) -> bytes | None:
    """Return the group's kept records as one batch; empty if there are none, `None` if nothing changes."""
    part = between(found, group.first, group.last)
    start = int(found.batches["first_record"][group.first])
    kept = keep[start : start + len(part.records)]
    if not kept.any():
        return b""
    attributes = int(part.batches["attributes"][0])
    if len(part.batches) == 1 and kept.all() and not _needs_rewriting(part, attributes):
        return None
    with_records = part.batches[_kept(part, kept) > 0]
    codec = BatchCodec(int(with_records["attributes"][0]) & CODEC_MASK)
    return bytes(merged(part, kept, codec, horizon_ms))


def _needs_rewriting(part: RecordBatches, attributes: int) -> bool:
    """Return whether a batch changes although all its records are kept: by leaving its transaction, or by a
    delete horizon for its tombstones."""
    if attributes & CONTROL:
        return False
    has_tombstone = bool((part.records["value_len"] < 0).any())
    return bool(attributes & TRANSACTIONAL) or (has_tombstone and not attributes & DELETE_HORIZON)


def _with_markers(found: RecordBatches, why: Reasons, rules: Rules, kept_marker: int | None) -> Reasons:
    """Return the reasons for removal, with those of markers by step 1 above."""
    batches = found.batches
    is_control = batches["attributes"] & CONTROL != 0
    decides = np.isin(batches["marker"], (ABORT, COMMIT))
    goes = decides & (batches["last_offset"] < min(rules.markers_below, rules.bound))
    if kept_marker is not None:
        goes &= batches["last_offset"] != kept_marker
    of_markers = np.where(goes, RemovalReason.MARKER, RemovalReason.STAYS)
    at = found.records["batch"]
    return np.where(is_control[at], of_markers[at], why).astype(np.uint8)


def _kept(found: RecordBatches, keep: Flags) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.bincount(found.records["batch"][keep], minlength=len(found.batches)).astype(np.int64)


def _bytes_left(found: RecordBatches, keep: Flags) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Estimate how many stored bytes are kept of each batch."""
    records, count = found.records, len(found.batches)
    sizes = (records["end"] - records["tail"]).astype(np.float64)
    whole = np.bincount(records["batch"], sizes, minlength=count)
    left = np.bincount(records["batch"][keep], sizes[keep], minlength=count)
    return np.asarray(found.batches["size"] * left / np.maximum(whole, 1.0), np.float64)
