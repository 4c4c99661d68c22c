"""JSON documents of ledgers and single specs, for kinds of datasets whose ledger is Lithify's own.

A document has its format's version; unknown versions are refused. Every value is checked when it is read,
because any program may have written it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import parse_ulid
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.protocol.lease import MAX_EPOCH
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    OutputT,
    Progress,
    RangeProgress,
    RangeT,
    SpecT,
)

FIRST_VERSION = 1
NEWEST_VERSION = 3
"""A document has the lowest version that can represent its specs, so that an older Lithify reads it if it
can, and otherwise reports that it is newer."""

Fields = Mapping[str, Any]
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Values(Generic[ValueT]):
    """The JSON encoding of values of one class. `read` may raise any `Exception` for invalid ones."""

    write: Callable[[ValueT], Any]
    read: Callable[[Any], ValueT]
    version: Callable[[ValueT], int] = lambda value: FIRST_VERSION
    """Return the lowest version of documents that can contain the value."""


class Texts:
    """Cached texts of the compactions of the last encoded ledger. Most are unchanged in the next one, and
    encoding many again takes longer than everything else that a version needs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, str]] = {}
        """By `id`; the value is kept alive, so that no other can have the same."""

    def of(self, values: Sequence[ValueT], encode: Callable[[ValueT], str]) -> list[str]:
        """Return the text of each of these immutable values."""
        known, self._known = self._known, {}
        for value in values:
            found = known.get(id(value))
            self._known[id(value)] = (value, encode(value)) if found is None else found
        return [self._known[id(value)][1] for value in values]


@dataclass(frozen=True, slots=True)
class LedgerFormat(Generic[SpecT, RangeT, OutputT]):
    """The ledger format of one kind."""

    specs: Values[SpecT]
    """Each spec is encoded as an object."""
    ranges: Values[RangeT]
    outputs: Values[OutputT]

    def encode(
        self, ledger: Ledger[SpecT, RangeT, OutputT], mark: str = "", texts: Texts | None = None
    ) -> bytes:
        """Encode the ledger. `mark` is written to the document but not decoded and not kept in later
        versions. `texts` is a cache of encoded compactions, updated with those of this ledger."""
        texts = Texts() if texts is None else texts
        compactions = texts.of(ledger.compactions, lambda c: _text(self._of_compaction(c)))
        version = max((self.specs.version(c.spec) for c in ledger.compactions), default=FIRST_VERSION)
        head = _text({"version": version, "epoch": ledger.epoch})[:-1]
        tail = f',"mark":{_text(mark)}' if mark else ""
        return f'{head},"compactions":[{",".join(compactions)}]{tail}}}'.encode()

    def decode(self, data: bytes, name: str) -> Ledger[SpecT, RangeT, OutputT]:
        """Decode a ledger; `name` is the object's key."""
        return _decode(data, name, self._ledger)

    def encode_spec(self, spec: SpecT) -> str:
        return _text({"version": self.specs.version(spec), **self.specs.write(spec)})

    def decode_spec(self, encoded: str) -> SpecT:
        return _decode(encoded.encode(), "spec", self.specs.read)

    def _of_compaction(self, compaction: Compaction[SpecT, RangeT, OutputT]) -> Fields:
        worker, progress = compaction.worker, compaction.progress
        return {
            "id": compaction.id,
            "state": compaction.state.value,
            "spec": self.specs.write(compaction.spec),
            "outputs": [self.outputs.write(output) for output in compaction.outputs],
            "worker": None if worker is None else [worker.id, worker.last_heartbeat_ms],
            "progress": None
            if progress is None
            else [
                [self.ranges.write(part.range), [self.outputs.write(output) for output in part.outputs]]
                for part in progress.ranges
            ],
        }

    def _ledger(self, fields: Fields) -> Ledger[SpecT, RangeT, OutputT]:
        compactions = [self._compaction(entry) for entry in fields["compactions"]]
        epoch = whole_number(fields["epoch"], most=MAX_EPOCH)
        return Ledger(epoch, tuple(sorted(compactions, key=lambda c: c.id)))

    def _compaction(self, fields: Fields) -> Compaction[SpecT, RangeT, OutputT]:
        worker, progress = fields["worker"], fields["progress"]
        return Compaction(
            id=parse_ulid(fields["id"]),
            spec=self.specs.read(fields["spec"]),
            state=CompactionState(fields["state"]),
            outputs=tuple(self.outputs.read(entry) for entry in fields["outputs"]),
            worker=None if worker is None else AssignedWorker(text(worker[0]), int(worker[1])),
            progress=None if progress is None else Progress(tuple(self._range(*part) for part in progress)),
        )

    def _range(self, part: Any, outputs: Any) -> RangeProgress[RangeT, OutputT]:
        return RangeProgress(self.ranges.read(part), tuple(self.outputs.read(entry) for entry in outputs))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _decode(data: bytes, name: str, parse: Callable[[Fields], ValueT]) -> ValueT:
    try:
        document = json.loads(data)
        version = document["version"]
        if version in range(FIRST_VERSION, NEWEST_VERSION + 1):
            return parse(document)
    except UNDECODABLE as error:
        raise CorruptObject(name, f"does not decode: {type(error).__name__}: {error}") from error
    raise Unsupported(
        f"{name}: is of version {version!r}, but this Lithify reads versions up to {NEWEST_VERSION}; use a "
        "newer one"
    )
