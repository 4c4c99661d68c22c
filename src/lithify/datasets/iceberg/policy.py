"""The policy of a table: its properties `lithify.…`, and the operator's overrides.

Sizes and times may have a unit, as in `512MiB` and `6h`.

| property | default |
|---|---|
| `lithify.granularity` | `day`: hour, day, week, month or year |
| `lithify.time-zone` | `UTC`: the time zone of the chunks' calendar |
| `lithify.axis` | `auto`: by time if there is a time column; or `time`, or `none` to compact by size only |
| `lithify.time-column` | see `time_column` |
| `lithify.target-file-size-bytes` | `write.target-file-size-bytes` (512 MiB) |
| `lithify.min-saved-files` | 5: while more data may arrive, a chunk waits until compacting saves this many |
| `lithify.min-new-percent` | 20: and until these have this share of its bytes |
| `lithify.allowed-lateness-seconds` | 3600: how long after a chunk's end more data may arrive |
| `lithify.max-deleted-percent` | 0 (off): a chunk is compacted once this share of its rows is deleted |
| `lithify.skip-from-latest-seconds` | 0: chunks that end later than this before the newest data wait |
| `lithify.skip-from-now-seconds` | 0: the same, but before the current time |
| `lithify.max-task-bytes` | 8 GiB: a compaction reads no more, unless one chunk is larger |
| `lithify.small-task-bytes` | 1 GiB: a compaction that reads less may be combined with another |
| `lithify.max-combine-gap-seconds` | 0: how far apart the chunks of combined compactions may be |
| `lithify.max-tasks` | 16: maximum of active compactions |
| `lithify.max-active-bytes` | 100 GiB: maximum bytes that all active compactions read |
| `lithify.max-queued-tasks` | 1000: more than these are deferred until the queue is empty |
| `lithify.expire-snapshots` | 0; 1: coordinators expire unneeded snapshots and their files |
| `lithify.rewrite-position-delete-files` | 0; 1: coordinators drop and merge delete files |
| `lithify.max-equality-delete-files` | 100: coordinators rewrite equality deletes if there are more files |
| `lithify.rewrite-manifests` | 0; 1: coordinators rewrite manifests where it is worthwhile |
| `lithify.remove-orphans` | 0; 1: coordinators delete orphan files of any writer |
| `lithify.orphan-age-seconds` | 259200: minimum age of deleted orphan files; at least three days |
| `lithify.orphan-interval-seconds` | 604800: interval of the search for orphan files; at least a day |
| `lithify.skip-parts` | none: parts of maintenance, such as `data,expiry`, done only on request |
| `lithify.branch` | `main`; required when there are several |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lithify.base.errors import Refused
from lithify.config.durations import parse_duration
from lithify.config.sizes import parse_size
from lithify.datasets.maintenance import PARTS

PREFIX = "lithify."
DAY_S = 24 * 3600
MIB = 1024 * 1024
AXES = ("auto", "time", "none")
GRANULARITIES = ("hour", "day", "week", "month", "year")
DEFAULT_TARGET_BYTES = 512 * MIB
MAX_SECONDS = 10**11
"""3,170 years: more than between any two times, and still representable in microseconds."""
MAX_NUMBER = 1 << 60
_SKIP, _BRANCH = "skip-parts", "branch"
_ICEBERG_TARGET = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """A table's policy; see the module's table."""

    granularity: str = "day"
    time_zone: str = "UTC"
    axis: str = "auto"
    time_column: str | None = None
    target_file_size_bytes: int = DEFAULT_TARGET_BYTES
    min_saved_files: int = 5
    min_new_percent: int = 20
    allowed_lateness_seconds: int = 3600
    max_deleted_percent: int = 0
    skip_from_latest_seconds: int = 0
    skip_from_now_seconds: int = 0
    max_task_bytes: int = 8 * 1024 * MIB
    small_task_bytes: int = 1024 * MIB
    max_combine_gap_seconds: int = 0
    max_tasks: int = 16
    max_active_bytes: int = 100 * 1024 * MIB
    max_queued_tasks: int = 1000
    expire_snapshots: int = 0
    rewrite_position_delete_files: int = 0
    max_equality_delete_files: int = 100
    rewrite_manifests: int = 0
    remove_orphans: int = 0
    orphan_age_seconds: int = 3 * DAY_S
    orphan_interval_seconds: int = 7 * DAY_S
    skip_parts: str = ""
    branch: str | None = None

    @property
    def left_out(self) -> frozenset[str]:
        """Return the parts of `PARTS` that are skipped."""
        return _parts(self.skip_parts)


_OF_DATA = frozenset(
    {
        "granularity",
        "time_zone",
        "axis",
        "time_column",
        "target_file_size_bytes",
        "min_saved_files",
        "min_new_percent",
        "allowed_lateness_seconds",
        "max_deleted_percent",
        "skip_from_latest_seconds",
        "skip_from_now_seconds",
        "max_task_bytes",
        "small_task_bytes",
        "max_combine_gap_seconds",
        "max_tasks",
        "max_active_bytes",
        "max_queued_tasks",
    }
)
"""Properties that only the compaction of data uses."""
_TEXTS = ("granularity", "time_zone", "axis", "time_column", "skip_parts", "branch")
_AT_LEAST = {
    "target_file_size_bytes": 1,
    "min_saved_files": 1,
    "max_task_bytes": 1,
    "small_task_bytes": 1,
    "max_tasks": 1,
    "max_active_bytes": 1,
    "max_queued_tasks": 1,
    "orphan_age_seconds": 3 * DAY_S,
    "orphan_interval_seconds": DAY_S,
}
_AT_MOST = {
    "min_new_percent": 100,
    "max_deleted_percent": 100,
    "expire_snapshots": 1,
    "rewrite_position_delete_files": 1,
    "rewrite_manifests": 1,
    "remove_orphans": 1,
}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NAMES = {PREFIX + name.replace("_", "-"): name for name in TablePolicy.__dataclass_fields__}


def left_out_of(properties: Mapping[str, str], instead: Mapping[str, str] = _NOTHING) -> frozenset[str]:
    """Return the parts of maintenance that are skipped, even if the rest of the policy is invalid."""
    own = properties.get(f"{PREFIX}{_SKIP}", "")
    return _parts(instead.get(_SKIP, own))


def branch_of(properties: Mapping[str, str], instead: Mapping[str, str] = _NOTHING) -> str | None:
    """Return the configured branch, even if the rest of the policy is invalid."""
    return instead.get(_BRANCH, properties.get(f"{PREFIX}{_BRANCH}"))


def _parts(text: str) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in text.split(","))))


def parse_policy(
    properties: Mapping[str, str], url: str, instead: Mapping[str, str] = _NOTHING, *, of_data: bool = True
) -> TablePolicy:
    """Return the policy in a table's properties; `instead`, without the prefix, overrides them. Without
    `of_data`, properties that only the compaction of data uses have their defaults and are not read. Raise
    `Refused` when a property is unknown, or one that is read is invalid."""
    properties = {**properties, **{PREFIX + name: text for name, text in instead.items()}}
    values: dict[str, str | int] = {}
    if of_data and _ICEBERG_TARGET in properties:
        values["target_file_size_bytes"] = _number(_ICEBERG_TARGET, properties[_ICEBERG_TARGET], 1, url)
    for key, text in properties.items():
        if not key.startswith(PREFIX):
            continue
        name = _NAMES.get(key)
        if name is None:
            raise Refused(f"{url}: the property {key} is unknown; known properties are {', '.join(_NAMES)}")
        if name in _OF_DATA and not of_data:
            continue
        values[name] = text if name in _TEXTS else _number(key, text, _AT_LEAST.get(name, 0), url)
    policy = TablePolicy(**values)  # type: ignore[arg-type]  # each name has its own type, checked above
    for name, most in _AT_MOST.items():
        if getattr(policy, name) > most:
            key = PREFIX + name.replace("_", "-")
            raise Refused(f"{url}: {key} is {getattr(policy, name)}, more than {most}")
    if policy.granularity not in GRANULARITIES:
        known = ", ".join(GRANULARITIES)
        raise Refused(f"{url}: lithify.granularity is {policy.granularity!r}; it must be one of {known}")
    if policy.axis not in AXES:
        raise Refused(f"{url}: lithify.axis is {policy.axis!r}; it must be one of {', '.join(AXES)}")
    if policy.axis == "none" and policy.time_column is not None:
        raise Refused(
            f"{url}: lithify.axis is none and lithify.time-column is {policy.time_column!r}; remove one of "
            "them"
        )
    unknown = sorted(policy.left_out - set(PARTS))
    if unknown:
        says = f"{', '.join(unknown)}: not a part of maintenance; the parts are {', '.join(PARTS)}"
        raise Refused(f"{url}: lithify.skip-parts names {says}")
    try:
        ZoneInfo(policy.time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Refused(
            f"{url}: lithify.time-zone is {policy.time_zone!r}, which is not a time zone"
        ) from error
    return policy


def _number(key: str, text: str, least: int, url: str) -> int:
    is_time, is_size = key.endswith("-seconds"), key.endswith("-bytes")
    most = MAX_SECONDS if is_time else MAX_NUMBER
    try:
        # Other programs read Iceberg's own properties too, so these have a format that they can read.
        value = _units(text, is_time, is_size) if key.startswith(PREFIX) else int(text)
    except ValueError:
        value = -1
    if not least <= value <= most:
        example = ', or text such as "6h"' if is_time else ', or text such as "512MiB"' if is_size else ""
        raise Refused(
            f"{url}: {key} is {text[:40]!r}; it must be a whole number from {least} to {most}"
            + (example if key.startswith(PREFIX) else "")
        )
    return value


def _units(text: str, is_time: bool, is_size: bool) -> int:
    """Parse a whole number; a time or a size may have a unit. Raise `ValueError` for any other text."""
    if is_size:
        return parse_size(text)
    if is_time and text.strip()[-1:].isalpha():
        second = timedelta(seconds=1)
        duration = parse_duration(text)
        if duration % second:
            raise ValueError("not whole seconds")
        return duration // second
    return int(text)
