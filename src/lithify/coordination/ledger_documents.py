"""A ledger, and single specs, as JSON, for kinds of datasets whose ledger is Lithify's own.

A document names its format's version; another one is refused. Everything is checked when it is read,
because anybody may have written it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lithify.compaction.lease import MAX_EPOCH
from lithify.compaction.model import (
    Compaction,
    Ledger,
    OutputT,
    Progress,
    RangeProgress,
    RangeT,
    SpecT,
    State,
    Worker,
)
from lithify.errors import CorruptObject, Unsupported
from lithify.ids import parse_ulid
from lithify.jsonvalues import UNDECODABLE, text, whole_number

VERSION = 1

Fields = Mapping[str, Any]
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Values(Generic[ValueT]):
    """How values of one class stand in JSON. `read` raises any `Exception` for what is none."""

    write: Callable[[ValueT], Any]
    read: Callable[[Any], ValueT]


@dataclass(frozen=True, slots=True)
class LedgerFormat(Generic[SpecT, RangeT, OutputT]):
    """The ledgers of one kind."""

    specs: Values[SpecT]
    """Each as an object of names and values."""
    ranges: Values[RangeT]
    outputs: Values[OutputT]

    def encode(self, ledger: Ledger[SpecT, RangeT, OutputT], mark: str = "") -> bytes:
        """The ledger as bytes. Nobody reads or keeps the `mark` beside it."""
        marked = {"mark": mark} if mark else {}
        compactions = [self._of_compaction(c) for c in ledger.compactions]
        return _encode({"epoch": ledger.epoch, "compactions": compactions, **marked})

    def decode(self, data: bytes, name: str) -> Ledger[SpecT, RangeT, OutputT]:
        """The ledger in these bytes; `name` is the object's key."""
        return _decode(data, name, self._ledger)

    def encode_spec(self, spec: SpecT) -> str:
        """A spec as text."""
        return _encode(self.specs.write(spec)).decode()

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
            state=State(fields["state"]),
            outputs=tuple(self.outputs.read(entry) for entry in fields["outputs"]),
            worker=None if worker is None else Worker(text(worker[0]), int(worker[1])),
            progress=None if progress is None else Progress(tuple(self._range(*part) for part in progress)),
        )

    def _range(self, part: Any, outputs: Any) -> RangeProgress[RangeT, OutputT]:
        return RangeProgress(self.ranges.read(part), tuple(self.outputs.read(entry) for entry in outputs))


def _encode(document: Fields) -> bytes:
    return json.dumps({"version": VERSION, **document}, separators=(",", ":")).encode()


def _decode(data: bytes, name: str, parse: Callable[[Fields], ValueT]) -> ValueT:
    try:
        document = json.loads(data)
        version = document["version"]
        if version == VERSION:
            return parse(document)
    except UNDECODABLE as error:
        raise CorruptObject(name, f"does not decode: {type(error).__name__}: {error}") from error
    raise Unsupported(f"{name}: is of version {version!r}, and this Lithify knows {VERSION}; use a newer one")
