"""Decides which records a pass over a log keeps.

| records                  | kept                                                                         |
|--------------------------|------------------------------------------------------------------------------|
| of aborted transactions  | none                                                                         |
| with a key               | the newest of each key, and all that `dead` does not name                    |
| without a key            | all or none, as the layout says                                              |
| tombstones               | until their batch's delete horizon has passed, they are below the threshold  |
|                          | for tombstones, and they are not `pinned`                                    |
| markers                  | until they are empty, their delete horizon has passed, and they are below    |
|                          | the threshold for markers                                                    |
| from the bound on        | all                                                                          |
| batches left empty       | the last one of each active producer, and the one at the bound               |

The first pass that keeps a tombstone sets its delete horizon, so a later pass removes it. A *pinned*
tombstone still deletes something: an older record of its key is not rewritten, or is removed by this very
pass, whose publication may be interrupted.

This module decides about whole batches, compiled code about single records (`kernel/retaining.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lithify.datasets.kafka.format.kernel.layout import CONTROL, DELETE_HORIZON, NO_PRODUCER, Records
from lithify.datasets.kafka.format.kernel.retaining import (
    ABORTED,
    CONTROL_BATCH,
    EMPTY_MARKER,
    HORIZON_CAME,
    MARKER_GOES,
    RETAIN_EMPTY,
    Offsets,
    Reasons,
    RemovalReason,
    Tally,
    Verdicts,
    give_reasons,
    pass_along,
)
from lithify.datasets.kafka.format.kernel.retaining import NO_BOUND as NO_BOUND
from lithify.datasets.kafka.format.kernel.retaining import NO_OFFSETS as NO_OFFSETS
from lithify.datasets.kafka.format.kernel.rewrite import Flags
from lithify.datasets.kafka.format.record_batches import BatchRetention, RecordBatches
from lithify.datasets.kafka.format.transactions import Fates

_LAST_MS = (1 << 63) - 1
_REASONS = {
    RemovalReason.ABORTED: "aborted",
    RemovalReason.SUPERSEDED: "superseded",
    RemovalReason.MARKER: "markers",
    RemovalReason.WITHOUT_KEY: "without_key",
    RemovalReason.TOMBSTONE: "tombstones",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a pass. Bounds are offsets and exclusive."""

    now_ms: int
    delete_retention_ms: int
    """How long tombstones and empty markers are kept once nothing older is left, `delete.retention.ms`."""
    keep_unkeyed: bool
    """Whether records without a key are kept."""
    bound: int
    """Records from here on stay as they are: they are undecided or not settled."""
    tombstones_below: int = NO_BOUND
    """Tombstones from here on are kept: a copy may still have the records they delete."""
    markers_below: int = NO_BOUND
    """Markers from here on are kept: a copy may still have the records they decide."""

    @property
    def new_horizon_ms(self) -> int:
        """The delete horizon of batches that get one, in milliseconds since 1970, limited to the largest
        i64."""
        return min(self.now_ms + self.delete_retention_ms, _LAST_MS)

    def way(self, batches: Records, dead: Offsets, pinned: Offsets) -> Records:
        """Return the rules for compiled code (`PASS`), positioned at the first of these batches."""
        return pass_along(
            dead,
            pinned,
            first=int(batches["base_offset"][0]) if len(batches) else 0,
            keep_unkeyed=self.keep_unkeyed,
            bound=self.bound,
            tombstones_below=self.tombstones_below,
            new_horizon_ms=self.new_horizon_ms,
        )


@dataclass(frozen=True, slots=True)
class LastRecord:
    epoch: int
    data_offset: int | None
    """Last offset of its last data batch; `None` if only a marker has its current epoch."""
    timestamp_ms: int


def retention(
    source: RecordBatches,
    fates: Fates,
    rules: Rules,
    retain_empty: Flags,
    dead: Offsets,
    pinned: Offsets,
) -> BatchRetention:
    """Return what to keep of these batches; `dead` and `pinned` are offsets in any part of the log."""
    keep = reasons(source, fates, rules, dead, pinned) == RemovalReason.STAYS
    return BatchRetention(keep, retain_empty, fates.empty_marker, rules.new_horizon_ms)


def reasons(source: RecordBatches, fates: Fates, rules: Rules, dead: Offsets, pinned: Offsets) -> Reasons:
    """Return why each record is removed, or `STAYS` (`RemovalReason`)."""
    found = np.empty(len(source.records), np.uint8)
    what = verdicts(source.batches, fates, rules, np.zeros(len(source.batches), np.bool_))
    way = rules.way(source.batches, dead, pinned)
    give_reasons(source.records, what, way, found)
    return found


@dataclass(frozen=True, slots=True)
class FirstKept:
    """The first tombstone and the first marker that stay only because of the rules' thresholds; `NO_BOUND` if
    there is none."""

    tombstone: int = NO_BOUND
    marker: int = NO_BOUND

    def least(self, other: FirstKept) -> FirstKept:
        return FirstKept(min(self.tombstone, other.tombstone), min(self.marker, other.marker))


def kept_marker(batches: Records, fates: Fates, rules: Rules) -> int:
    """Return the last offset of the first marker that stays only because of the threshold for markers."""
    is_kept = _may_go(batches, fates, rules) & (batches["last_offset"] >= rules.markers_below)
    return int(batches["last_offset"][is_kept].min(initial=NO_BOUND))


def _may_go(batches: Records, fates: Fates, rules: Rules) -> Flags:
    """Return which batches are markers that could be removed, apart from the threshold."""
    may_go = fates.empty_marker & _horizon_came(batches, rules) & (batches["count"] > 0)
    return np.asarray(may_go, np.bool_)


def _horizon_came(batches: Records, rules: Rules) -> Flags:
    came = _have(batches, DELETE_HORIZON) & (batches["base_timestamp"] <= rules.now_ms)
    return np.asarray(came, np.bool_)


def verdicts(batches: Records, fates: Fates, rules: Rules, retain_empty: Flags) -> Verdicts:
    """Return the facts that hold for all records of each batch."""
    horizon_came = _horizon_came(batches, rules)
    marker_goes = fates.empty_marker & horizon_came & (batches["last_offset"] < rules.markers_below)
    found = np.zeros(len(batches), np.uint8)
    for holds, bit in (
        (fates.aborted, ABORTED),
        (_have(batches, CONTROL), CONTROL_BATCH),
        (marker_goes, MARKER_GOES),
        (horizon_came, HORIZON_CAME),
        (retain_empty, RETAIN_EMPTY),
        (fates.empty_marker, EMPTY_MARKER),
    ):
        found[holds] |= bit
    return found


def dropped(tally: Tally) -> dict[str, int]:
    """Return how many records are removed, by reason."""
    return {name: int(tally[reason]) for reason, name in _REASONS.items()}


def last_records(batches: Records, before: Mapping[int, LastRecord] | None = None) -> dict[int, LastRecord]:
    """Return each producer's last state after these batches, which follow those of `before`."""
    found = dict(before or {})
    for batch in batches[batches["producer_id"] != NO_PRODUCER]:
        if batch["attributes"] & CONTROL and not batch["count"]:
            continue
        producer_id, epoch = int(batch["producer_id"]), int(batch["producer_epoch"])
        timestamp_ms = int(batch["max_timestamp"])
        if not batch["attributes"] & CONTROL:
            found[producer_id] = LastRecord(epoch, int(batch["last_offset"]), timestamp_ms)
            continue
        known = found.get(producer_id)
        data_offset = known.data_offset if known and known.epoch == epoch else None
        found[producer_id] = LastRecord(epoch, data_offset, timestamp_ms)
    return found


def empty_to_retain(batches: Records, producers: Mapping[int, LastRecord], bound: int) -> Flags:
    """Return which batches keep their header without records. Brokers need them for the last sequence or
    epoch of active producers, and for the end of the log if it ends at `bound`."""
    retained = batches["last_offset"] + 1 == bound
    for at in np.flatnonzero(np.isin(batches["producer_id"], list(producers))):
        batch = batches[at]
        last = producers[int(batch["producer_id"])]
        if last.data_offset is not None:
            retained[at] |= batch["last_offset"] == last.data_offset
        else:
            retained[at] |= bool(batch["attributes"] & CONTROL) and batch["producer_epoch"] == last.epoch
    return np.asarray(retained, np.bool_)


def active(producers: Mapping[int, LastRecord], now_ms: int, expiration_ms: int) -> dict[int, LastRecord]:
    """Return the producers that a broker still knows: those active within `producer.id.expiration.ms`."""
    return {who: last for who, last in producers.items() if now_ms - last.timestamp_ms < expiration_ms}


def _have(batches: Records, attribute: int) -> Flags:
    return np.asarray(batches["attributes"] & attribute != 0, np.bool_)
