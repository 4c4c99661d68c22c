"""A ledger, and single specs, as JSON, for kinds of datasets whose ledger is Lithify's own.

A document names its format's version; another one is refused. Everything is checked when it is read,
because anybody may have written it.
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
NEWEST_VERSION = 2
"""A document is of the lowest version that has room for its specs, so that an older Lithify reads what it
can, and says of the rest that it is newer."""

Fields = Mapping[str, Any]
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Values(Generic[ValueT]):
    """How values of one class stand in JSON. `read` raises any `Exception` for what is none."""

    write: Callable[[ValueT], Any]
    read: Callable[[Any], ValueT]
    version: Callable[[ValueT], int] = lambda value: FIRST_VERSION
    """The lowest version of documents with such a value."""


class Texts:
    """The texts of the compactions of the ledger that was encoded last. Most of those of the next one are the
    same, and encoding many again and again takes longer than all else that a version does."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, str]] = {}
        """By identity; the value is kept, so that no other has the same."""

    def of(self, values: Sequence[ValueT], encode: Callable[[ValueT], str]) -> list[str]:
        """The text of each of these, which nobody changes."""
        known, self._known = self._known, {}
        for value in values:
            found = known.get(id(value))
            self._known[id(value)] = (value, encode(value)) if found is None else found
        return [self._known[id(value)][1] for value in values]


@dataclass(frozen=True, slots=True)
class LedgerFormat(Generic[SpecT, RangeT, OutputT]):
    """The ledgers of one kind."""

    specs: Values[SpecT]
    """Each as an object of names and values."""
    ranges: Values[RangeT]
    outputs: Values[OutputT]

    def encode(
        self, ledger: Ledger[SpecT, RangeT, OutputT], mark: str = "", texts: Texts | None = None
    ) -> bytes:
        """The ledger as bytes. Nobody reads or keeps the `mark` beside it. `texts` are those of compactions
        that were encoded before, and get those of this ledger."""
        texts = Texts() if texts is None else texts
        compactions = texts.of(ledger.compactions, lambda c: _text(self._of_compaction(c)))
        version = max((self.specs.version(c.spec) for c in ledger.compactions), default=FIRST_VERSION)
        head = _text({"version": version, "epoch": ledger.epoch})[:-1]
        tail = f',"mark":{_text(mark)}' if mark else ""
        return f'{head},"compactions":[{",".join(compactions)}]{tail}}}'.encode()

    def decode(self, data: bytes, name: str) -> Ledger[SpecT, RangeT, OutputT]:
        """The ledger in these bytes; `name` is the object's key."""
        return _decode(data, name, self._ledger)

    def encode_spec(self, spec: SpecT) -> str:
        """A spec as text."""
        return _text({"version": self.specs.version(spec), **self.specs.write(spec)})

    def decode_spec(self, encoded: str) -> SpecT:
        """The spec in a text."""
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
        f"{name}: is of version {version!r}, and this Lithify knows versions up to {NEWEST_VERSION}; use a "
        "newer one"
    )
