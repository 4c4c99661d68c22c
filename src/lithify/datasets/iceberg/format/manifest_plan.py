"""Decides which manifests of a snapshot to rewrite, and which of them together (pure).

A query opens the manifests whose partition bounds meet its filter. So the manifests of one content and one
partition spec are ordered by the bounds of the leading partition field (`entry_order`).

1. A manifest without a live entry is dropped.
2. Manifests whose bounds overlap in more than an edge belong together (*badly clustered*): a query for one
   value opens them all.
3. A manifest with `MIN_DELETED_PERCENT` or more of its entries deleted is rewritten.
4. A manifest of less than half the target size is *small*.
5. Neighbours that are small, or rewritten by 2 or 3, form a *group*: its entries are sorted and written to
   manifests of the target size. A single small manifest is not a group.

Invariant: after the groups are written, none is left. A group's outputs stay within its bounds without
overlaps and have no deleted entries. All but its last one have the target size, so no two small ones are
neighbours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any

MIN_DELETED_PERCENT = 10
MAX_OVERLAPPING = 10
"""If a query for one value opens this many manifests, a rewrite is worth it at any time."""

Bound = tuple[Any, ...]
"""A comparable value of the leading field."""


class RewriteReason(StrEnum):
    EMPTY = "no live entries"
    DELETED = "deleted entries"
    OVERLAPPING = "badly clustered"
    SMALL = "small"


@dataclass(frozen=True, slots=True)
class Facts:
    """A manifest in the manifest list."""

    path: str
    kind: tuple[int, str]
    """The partition spec and the content: only manifests of one kind are written together."""
    size_bytes: int
    live: int | None
    """Entries; `None` if the list lacks the number."""
    deleted: int
    low: Bound
    high: Bound


@dataclass(frozen=True, slots=True)
class ManifestGroup:
    """Manifests whose entries are sorted and rewritten together."""

    kind: tuple[int, str]
    manifests: tuple[str, ...]
    new: int
    """The approximate number of manifests that the rewrite writes."""


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    groups: tuple[ManifestGroup, ...] = ()
    empty: tuple[str, ...] = ()
    reasons: Mapping[RewriteReason, int] = field(default_factory=dict)
    """The number of manifests that are not kept, by reason."""
    overlapping: int = 0
    """The most manifests that overlap in one value."""

    @property
    def manifests(self) -> int:
        """The number of manifests that are not kept."""
        return len(self.empty) + sum(len(group.manifests) for group in self.groups)

    @property
    def new(self) -> int:
        """The approximate number of manifests that are written."""
        return sum(group.new for group in self.groups)

    def is_worth(self, min_manifests: int) -> bool:
        """Return whether the plan justifies a snapshot that no operator requested."""
        return self.manifests >= min_manifests or self.overlapping >= MAX_OVERLAPPING


def plan_manifests(manifests: Sequence[Facts], target_bytes: int) -> ManifestPlan:
    """Plan by the rules of the module."""
    empty = [m for m in manifests if m.live == 0]
    by_kind: dict[tuple[int, str], list[Facts]] = defaultdict(list)
    for manifest in manifests:
        if manifest.live != 0:
            by_kind[manifest.kind].append(manifest)
    counts: Counter[RewriteReason] = Counter({RewriteReason.EMPTY: len(empty)} if empty else {})
    groups = []
    overlapping = 0
    for kind, of_kind in sorted(by_kind.items()):
        marked = []
        for together in _together(of_kind, target_bytes):
            overlapping = max(overlapping, _overlapping(together))
            marked.append([(m, _reason(m, len(together), target_bytes)) for m in together])
        for is_run, run in groupby(marked, key=lambda part: part[0][1] is not None):
            found = [one for part in run for one in part]
            if is_run and (len(found) > 1 or found[0][1] is not RewriteReason.SMALL):
                counts.update(reason for _, reason in found if reason is not None)
                groups.append(_group(kind, [manifest for manifest, _ in found], target_bytes))
    return ManifestPlan(tuple(groups), tuple(m.path for m in empty), counts, overlapping)


def _together(manifests: Sequence[Facts], target_bytes: int) -> Iterator[list[Facts]]:
    """Yield the manifests in order, one list for those that overlap directly or through others."""

    def place(one: Facts) -> tuple[Bound, Bound, bool, str]:
        return one.low, one.high, not _is_small(one, target_bytes), one.path

    found: list[Facts] = []
    high: Bound = ()
    for manifest in sorted(manifests, key=place):
        if found and manifest.low >= high:
            yield found
            found = []
        high = manifest.high if not found else max(high, manifest.high)
        found.append(manifest)
    if found:
        yield found


def _overlapping(manifests: Sequence[Facts]) -> int:
    """Return the most of these manifests that contain one value, without shared edges."""
    if len(manifests) < 2:
        return 0
    events: list[tuple[Bound, int]] = []
    for one in manifests:
        events += [(one.low, 1)] if one.low == one.high else [(one.low, 2), (one.high, 0)]
    now = most = points = 0
    last: Bound | None = None
    for value, what in sorted(events):
        points = points if value == last else 0
        last = value
        now += what - 1  # `what`: 0 end, 1 single value, 2 beginning
        points += what == 1
        most = max(most, now + points)
    return most


def _reason(manifest: Facts, together: int, target_bytes: int) -> RewriteReason | None:
    if manifest.live is not None:
        entries = manifest.live + manifest.deleted
        if manifest.deleted * 100 >= entries * MIN_DELETED_PERCENT:
            return RewriteReason.DELETED
    if together > 1:
        return RewriteReason.OVERLAPPING
    return RewriteReason.SMALL if _is_small(manifest, target_bytes) else None


def _is_small(manifest: Facts, target_bytes: int) -> bool:
    return 2 * manifest.size_bytes < target_bytes


def _group(kind: tuple[int, str], manifests: Sequence[Facts], target_bytes: int) -> ManifestGroup:
    size_bytes = 0
    for one in manifests:
        entries = (one.live or 0) + one.deleted
        size_bytes += one.size_bytes * (one.live or 0) // entries if entries else one.size_bytes
    return ManifestGroup(kind, tuple(m.path for m in manifests), max(1, -(-size_bytes // target_bytes)))
