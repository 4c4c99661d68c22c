"""Lithify's own folder of a table, and the table's own record of its content.

Holds, registered readers and waiting files are objects in that folder. Other programs may remove it: orphan
removal that does not know hidden names, lifecycle rules of a bucket, a person. A missing folder does not mean
that nothing is needed. So:

1. The folder has an identity, `state.json`, created before any other object that matters and never rewritten,
   so a removal by age takes it first. The folder is known to be complete since its creation, by the store's
   clock (`FolderIdentity`).
2. The table's properties record what must be in the folder (`Recorded`). Each key is an independent fact that
   no other commit can make wrong, so several processes may write them, through any catalog:

   | property, after `lithify-state.` | records                                      | removed when      |
   |----------------------------------|----------------------------------------------|-------------------|
   | `reader.<name>`                  | a reader is registered                       | it is dropped     |
   | `holds.<id>.<day>`               | until the end of that day (UTC) there may be | the day is over   |
   |                                  | holds in the folder `<id>`                   |                   |
   | `files.<id>.<day>`               | until then files wait in that folder         | the day is over   |
   | `files.<id>.always`              | some files there stay for good               | the loss is       |
   |                                  |                                              | accepted          |
   | `place`                          | the state is in the folder `<id>`, not under | a person removes  |
   |                                  | the table's location                         | it                |

   The value is the table's UUID, so a property copied from another table records nothing.
3. A run that finds less in the folder than the table records changes nothing (`missing`), until the missing
   objects are back, their time has passed, or a person accepts the loss.

A hold costs a commit to the table only if no key covers its lease: about once in two days, for any number of
holds. A reader costs one commit when registered and one when dropped. An expiry records waiting files in its
own commit.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from lithify.base.clock import Clock
from lithify.base.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    Refused,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)
from lithify.base.ids import Ids
from lithify.base.jsonvalues import UNDECODABLE, text
from lithify.coordination.holds import checked_name
from lithify.datasets.iceberg.format.publish import commit_to, tries
from lithify.datasets.iceberg.format.table_properties import properties_of
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

PREFIX = "lithify-state."
"""Not `lithify.`: older versions refuse a table with an unknown property of that prefix."""
FOREVER_MS = (1 << 62) - 1
LOST_ADVICE = (
    "register the readers and place the holds again, then run `lithify expire --accept-loss`; keep the "
    "folder where other programs do not remove it, see iceberg.state_location"
)
_DAY_MS = 24 * 3_600_000
_ID = re.compile(r"[0-9a-f]{32}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_ALWAYS = "always"
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    id: str
    since_ms: int
    """Since when the folder is complete, by the clock of its store."""


class StateFolder:
    """The identity file of Lithify's folder `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str, ids: Ids) -> None:
        self._store = store
        self._key = join(folder, "state.json")
        self._ids = ids

    def read(self) -> FolderIdentity | None:
        """Return the identity; `None` if it was never created, or was removed. Raise `CorruptObject` if it
        does not decode."""
        try:
            data, meta = self._store.get_with_meta(self._key)
        except ObjectNotFound:
            return None
        try:
            state_id = text(json.loads(data)["id"])
            if not _ID.fullmatch(state_id):
                raise ValueError(f"{state_id[:80]!r} is not an id")
        except UNDECODABLE as error:
            reason = f"does not decode: {error}; restore it, or delete it and accept the loss"
            raise CorruptObject(self._key, reason) from error
        return FolderIdentity(state_id, meta.last_modified_ms)

    def begin(self) -> FolderIdentity:
        """Return the identity, creating it if there is none."""
        found = self.read()
        if found is not None:
            return found
        with suppress(ObjectExists):  # another process was faster, or the response to a first try was lost
            self._store.create(self._key, json.dumps({"id": self._ids.uuid().hex}).encode())
        found = self.read()
        if found is None:
            raise StoreError(f"{self._key} was removed while it was created")
        return found

    def check(self, state: FolderIdentity) -> None:
        """Raise `Refused` if the folder's identity is not `state` any more: objects read meanwhile may be
        incomplete."""
        if self.read() != state:
            raise Refused(f"{self._key} was removed or replaced meanwhile; try again")


# The table's record (pure)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The state that a table's properties record."""

    readers: frozenset[str] = frozenset()
    """Names of registered readers."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """By the id of a folder: until when it may have holds; wall-clock milliseconds."""
    files: Mapping[str, int] = field(default_factory=dict)
    """By the id of a folder: until when it may have waiting files."""
    place: str | None = None
    """The id of the table's folder, if it is not under the table's location."""
    keys: frozenset[str] = frozenset()
    """All properties that record state of this table."""
    unknown: tuple[str, ...] = ()
    """Properties that a newer version wrote, or that are invalid."""


def recorded_in(metadata: TableMetadata) -> Recorded:
    own = str(metadata.table_uuid)
    said = {k: value for k, value in properties_of(metadata).items() if k.startswith(PREFIX)}
    keys = [key for key, value in said.items() if value[: len(own)] == own]
    readers, unknown = set[str](), list[str]()
    until: dict[str, dict[str, int]] = {"holds": {}, "files": {}}
    place = None
    for key in sorted(keys):
        kind, _, rest = key.removeprefix(PREFIX).partition(".")
        try:
            if kind == "reader":
                readers.add(checked_name(rest))
            elif kind == "place":
                place = _checked_id(said[key][len(own) + 1 :])
            else:
                state_id, _, day = rest.partition(".")
                known = until[kind]
                known[state_id] = max(known.get(_checked_id(state_id), 0), _end_of(day))
        except (Refused, ValueError, KeyError):
            unknown.append(key)
    return Recorded(
        frozenset(readers), until["holds"], until["files"], place, frozenset(keys), tuple(unknown)
    )


def needs_recorded_in(metadata: TableMetadata) -> frozenset[str]:
    """Return the properties that record holds and readers (pure)."""
    begins = (f"{PREFIX}holds.", f"{PREFIX}reader.")
    return frozenset(key for key in recorded_in(metadata).keys if key.startswith(begins))


def missing(recorded: Recorded, state: FolderIdentity | None, readers: Collection[str], now_ms: int) -> str:
    """Return which recorded holds, readers and files that stay for good the folder does not have; empty if it
    has all. `readers` are the names in the folder."""
    found = []
    lost = sorted(recorded.readers - set(readers))
    if lost:
        more = f" and {len(lost) - _MAX_SHOWN} more" if len(lost) > _MAX_SHOWN else ""
        found.append(f"the registered readers {', '.join(lost[:_MAX_SHOWN])}{more}")
    held_ms = _lost_until_ms(recorded.holds, state, now_ms)
    if held_ms is not None:
        found.append(f"holds whose leases may last until {_moment(held_ms)}")
    if _lost_until_ms(recorded.files, state, now_ms) == FOREVER_MS:
        found.append("files that are never deleted")
    if recorded.unknown:
        found.append(f"state in the unknown property {recorded.unknown[0][:80]!r}")
    return " and ".join(found)


def lost_text(lost: str) -> str:
    """Return the message for a loss that `missing` found."""
    return (
        f"the table records {lost}, but Lithify's folder does not contain them: another program may have "
        "removed it, or iceberg.state_location differs here"
    )


def missing_files(recorded: Recorded, state: FolderIdentity | None, now_ms: int) -> str:
    """Return which recorded waiting or permanent files the folder does not have; empty if it has all."""
    until_ms = _lost_until_ms(recorded.files, state, now_ms)
    if until_ms is None:
        return ""
    return (
        "files that are never deleted"
        if until_ms == FOREVER_MS
        else f"files that wait until {_moment(until_ms)}"
    )


def _lost_until_ms(until: Mapping[str, int], state: FolderIdentity | None, now_ms: int) -> int | None:
    """Return until when records of other folders count; `None` if none does."""
    known = None if state is None else state.id
    return max((ms for state_id, ms in until.items() if state_id != known and ms > now_ms), default=None)


def _not_answered(recorded: Recorded, state: FolderIdentity, readers: Collection[str]) -> list[str]:
    """Return the properties that record objects missing from this folder."""
    of_folder = {f"{PREFIX}{kind}.{state.id}." for kind in ("holds", "files")}
    kept = {f"{PREFIX}reader.{name}" for name in readers}
    return sorted(
        key
        for key in recorded.keys - kept
        if key != f"{PREFIX}place" and not any(key.startswith(begin) for begin in of_folder)
    )


def _past(recorded: Recorded, now_ms: int) -> list[str]:
    found = []
    for key in recorded.keys - set(recorded.unknown):
        kind, _, rest = key.removeprefix(PREFIX).partition(".")
        if kind in ("holds", "files") and _end_of(rest.partition(".")[2]) <= now_ms:
            found.append(key)
    return sorted(found)


def _checked_id(state_id: str) -> str:
    if not _ID.fullmatch(state_id):
        raise ValueError("not an id")
    return state_id


def _end_of(day: str) -> int:
    """Return the end of a day, in wall-clock milliseconds. Raise `ValueError` if it is no day."""
    if day == _ALWAYS:
        return FOREVER_MS
    if not _DAY.fullmatch(day):
        raise ValueError("not a day")
    begin = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
    return round(begin.timestamp() * 1000) + _DAY_MS


def _day_after(ms: int) -> str:
    """Return the day after the one of a time, so that needs of the next day are covered too."""
    try:
        return (datetime.fromtimestamp(ms / 1000, UTC).date() + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError, OSError):
        return _ALWAYS  # past the year 9999


def _moment(ms: int) -> str:
    return "for ever" if ms == FOREVER_MS else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


# Recording


@dataclass(frozen=True, slots=True)
class Change:
    to_set: Mapping[str, str]
    to_remove: Sequence[str] = ()

    def updates(self) -> tuple[TableUpdate, ...]:
        found: list[TableUpdate] = []
        if self.to_set:
            found.append(SetPropertiesUpdate(updates=dict(self.to_set)))
        if self.to_remove:
            found.append(RemovePropertiesUpdate(removals=list(self.to_remove)))
        return tuple(found)


def files_change(metadata: TableMetadata, state: FolderIdentity, until_ms: int, now_ms: int) -> Change:
    """Return the change by which an expiry records that files wait until a time (pure)."""
    return _until_change(metadata, "files", state, until_ms, now_ms)


def _until_change(
    metadata: TableMetadata, kind: str, state: FolderIdentity, until_ms: int, now_ms: int
) -> Change:
    recorded = recorded_in(metadata)
    known = recorded.holds if kind == "holds" else recorded.files
    if known.get(state.id, 0) >= until_ms:
        return Change({})
    day = _ALWAYS if until_ms == FOREVER_MS else _day_after(until_ms)
    own = {f"{PREFIX}{kind}.{state.id}.{day}": str(metadata.table_uuid)}
    return Change(own, _past(recorded, now_ms))


@contextmanager
def conflicts_told(what: str) -> Iterator[None]:
    """Raise `VersionConflict` if another commit has removed a property: PyIceberg raises `KeyError`."""
    try:
        yield
    except KeyError as error:
        raise VersionConflict(f"{what}: another commit has removed {error} meanwhile") from error


class TableRecord:
    """Writes the table's record, each change in a commit of its own."""

    def __init__(self, url: str, load: Callable[[], Table], clock: Clock, rng: random.Random) -> None:
        self._url = url
        self._load = load
        self._clock = clock
        self._rng = rng

    def hold(self, table: Table, state: FolderIdentity, until_ms: int, now_ms: int) -> None:
        """Record a hold in the folder until a time. Commit nothing if the loaded table records it already."""
        self._change(table, lambda now: _until_change(now.metadata, "holds", state, until_ms, now_ms))

    def files_for_good(self, table: Table, state: FolderIdentity, now_ms: int) -> None:
        """Record that files in the folder stay for good."""
        self._change(table, lambda now: _until_change(now.metadata, "files", state, FOREVER_MS, now_ms))

    def reader(self, table: Table, name: str) -> None:
        """Record that a reader is registered."""
        key = f"{PREFIX}reader.{name}"
        self._set(table, {key: str(table.metadata.table_uuid)})

    def no_reader(self, table: Table, name: str) -> None:
        """Remove the record of a reader."""
        self._remove(table, lambda recorded: [f"{PREFIX}reader.{name}"])

    def place(self, table: Table, state: FolderIdentity) -> None:
        """Record that the table's state is in this folder, which is not under its location."""
        self._set(table, {f"{PREFIX}place": f"{table.metadata.table_uuid} {state.id}"})

    def accept(self, table: Table, state: FolderIdentity, readers: Collection[str]) -> None:
        """Accept the loss: remove the records of all that is not in this folder."""
        self._remove(table, lambda recorded: _not_answered(recorded, state, readers))

    def _set(self, table: Table, wanted: Mapping[str, str]) -> None:
        def change(now: Table) -> Change:
            there = properties_of(now.metadata)
            return Change({key: value for key, value in wanted.items() if there.get(key) != value})

        self._change(table, change)

    def _remove(self, table: Table, wanted: Callable[[Recorded], Sequence[str]]) -> None:
        def change(now: Table) -> Change:
            recorded = recorded_in(now.metadata)
            return Change({}, [key for key in wanted(recorded) if key in recorded.keys])

        self._change(table, change)

    def _change(self, table: Table, change: Callable[[Table], Change]) -> None:
        what = f"recording Lithify's state in {self._url}"
        for number in tries(self._clock, self._rng):
            now = table if number == 1 else self._load()
            updates = change(now).updates()
            if not updates:
                return
            try:
                with conflicts_told(what):
                    commit_to(now, updates, (AssertTableUUID(uuid=now.metadata.table_uuid),), what)
                return
            except VersionConflict:
                continue
            except StoreUnavailable:
                if not change(self._load()).updates():
                    return  # only the response was lost
                raise
            except (StoreError, NotImplementedError) as error:
                raise Refused(
                    f"{self._url}: the catalog does not let the table record this, so a loss of Lithify's "
                    "folder would not be noticed; run this in a process that may change the table's "
                    f"properties: {error}"
                ) from error
        raise VersionConflict(
            f"{what}: other writers changed the table during every attempt; try again later"
        )
