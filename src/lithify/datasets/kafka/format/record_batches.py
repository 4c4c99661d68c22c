"""Decodes, filters and writes record batches.

`decode` takes whole batches, of an object or a part of it:

1. Check every header and checksum in compiled code (`kernel/headers.py`).
2. Unpack each compressed batch, behind the object's bytes in memory.
3. Read and check every record in compiled code (`kernel/records.py`).

Damaged data raise `CorruptObject`, data of an unknown version `Unsupported`; both name object and offset, and
nothing has been written by then.

`filtered` writes the records that a retention keeps (`kernel/rewrite.py`). Batches of which all is kept stay
byte for byte; the others keep offsets, last offset, producer, sequence, leader epoch, codec and type of
timestamps. Uncompressed, the bytes equal those of Kafka's own record filter.

`merged` writes the kept records of neighbouring batches as one batch, for layouts with one batch in an
object. Offsets and timestamps stay, and the batch reaches from the first batch's first offset to the last
one's last. It has no producer and no transaction, so only decided data may be merged, and no markers. It has
the last batch's leader epoch: a reader that knows that epoch would take an older one for a truncation of the
log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.kafka.cleaning.rewriting import Rewriter, pack, room
from lithify.datasets.kafka.format.codecs import BadCompression, BatchCodec, BatchCodecs
from lithify.datasets.kafka.format.kernel.headers import scan
from lithify.datasets.kafka.format.kernel.layout import (
    BASE_OFFSET_BYTES,
    BATCH,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_AT,
    MAGIC_AT,
    MAX_OFFSET_DELTA,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP,
    OUTPUT,
    REASONS,
    RECORD,
    KernelStatus,
    Records,
)
from lithify.datasets.kafka.format.kernel.records import parse
from lithify.datasets.kafka.format.kernel.retaining import (
    EMPTY_MARKER,
    NO_BOUND,
    NO_OFFSETS,
    RETAIN_EMPTY,
    pass_along,
)
from lithify.datasets.kafka.format.kernel.rewrite import Flags, merge
from lithify.kernel.buffers import Bytes, new_bytes

_UNKNOWN = (
    KernelStatus.UNKNOWN_ATTRIBUTES,
    KernelStatus.UNKNOWN_CODEC,
)


@dataclass(frozen=True, slots=True)
class BatchRetention:
    """The parts of record batches that a filter keeps."""

    keep: Flags
    """For each record, whether it is kept."""
    retain_empty: Flags
    """For each batch, whether its header is kept without records."""
    empty_marker: Flags
    """For each batch, whether it is the marker of a transaction without remaining data: it gets a delete
    horizon."""
    new_horizon_ms: int
    """The delete horizon of batches that get one, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class RecordBatches:
    """Batches and records in memory. Records are numbered through all batches."""

    name: str
    """The object they come from."""
    memory: Bytes
    """The object's bytes, then the unpacked records of its compressed batches, then slack."""
    size: int
    """Bytes of the object."""
    batches: Records
    """An array of `BATCH`."""
    records: Records
    """An array of `RECORD`."""

    def key(self, number: int) -> bytes | None:
        record = self.records[number]
        return self._field(int(record["key"]), int(record["key_len"]))

    def value(self, number: int) -> bytes | None:
        """Return a record's value; `None` is a tombstone."""
        record = self.records[number]
        return self._field(int(record["value"]), int(record["value_len"]))

    def raw(self, at: int) -> bytes:
        """Return the bytes of a batch as they are in the object."""
        batch = self.batches[at]
        return self.memory[batch["position"] : batch["position"] + batch["size"]].tobytes()

    def _field(self, position: int, length: int) -> bytes | None:
        return None if length < 0 else self.memory[position : position + length].tobytes()


def decode(data: bytes | memoryview, name: str, *, after: int = -1) -> RecordBatches:
    """Decode and check whole batches; `after` is the last offset of the batch before them, if any.

    Raises `CorruptObject` and `Unsupported`.
    """
    batches = headers(data, name, after=after)
    memory = _with_unpacked(data, batches, name)
    records = np.empty(int(batches["count"].sum()), RECORD)
    status, at = parse(memory.ctypes.data, batches, records)
    if status != KernelStatus.OK:
        raise _refused_batch(name, KernelStatus(status), batches[at])
    return RecordBatches(name, memory, len(data), batches, records)


def opened(data: memoryview, name: str, *, after: int) -> tuple[Bytes, Records]:
    """Return memory with the unpacked batches, and their headers (`BATCH`), without reading records. If
    nothing is compressed, this is the memory of `data`, and the reader of the records must verify
    checksums.

    Raises `CorruptObject` and `Unsupported`.
    """
    batches = headers(data, name, after=after, with_checksum=False)
    if not (batches["attributes"] & CODEC_MASK).any():
        _check_counts(batches, name)
        return np.frombuffer(data, np.uint8), batches
    batches = headers(data, name, after=after)
    return _with_unpacked(data, batches, name), batches


def headers(data: bytes | memoryview, name: str, *, after: int = -1, with_checksum: bool = True) -> Records:
    """Return the checked headers of whole batches (`BATCH`); their `marker` is not read.

    Raises `CorruptObject` and `Unsupported`.
    """
    source = np.frombuffer(data, np.uint8)
    batches = np.empty(len(source) // HEADER_BYTES + 1, BATCH)
    status, count, position = scan(source.ctypes.data, len(source), after, with_checksum, batches)
    if status != KernelStatus.OK:
        raise _refusal(name, KernelStatus(status), source, position, batches[count], after)
    return batches[:count].copy()


def rebased(batch: bytes | memoryview, base_offset: int) -> bytes:
    """Return the batch with another base offset, which its checksum does not cover: some layouts keep it in a
    name."""
    return base_offset.to_bytes(BASE_OFFSET_BYTES) + batch[BASE_OFFSET_BYTES:]


def filtered(source: RecordBatches, retention: BatchRetention) -> memoryview:
    """Return the kept batches, as the bytes of an object; empty if nothing is kept."""
    verdicts = np.where(retention.retain_empty, RETAIN_EMPTY, 0).astype(np.uint8)
    verdicts[retention.empty_marker] |= EMPTY_MARKER
    dead = source.records["offset"][~retention.keep]
    way = pass_along(dead, NO_OFFSETS, bound=NO_BOUND, new_horizon_ms=retention.new_horizon_ms)
    return Rewriter().write(source.memory, source.batches, verdicts, way).kept


def merged(source: RecordBatches, keep: Flags, codec: BatchCodec, new_horizon_ms: int) -> memoryview:
    """Return the kept records as one batch; empty if there are none. With tombstones, its delete horizon is
    the latest of theirs; `new_horizon_ms` counts for those without one."""
    batches, records = source.batches, source.records[keep]
    if not len(records):
        return memoryview(b"")
    first, last = int(batches[0]["base_offset"]), int(batches[-1]["last_offset"])
    if last - first > MAX_OFFSET_DELTA:
        raise ValueError(f"offsets {first} to {last} are more than a batch can count")
    if (batches["attributes"][records["batch"]] & CONTROL).any():
        raise ValueError("markers cannot be merged")
    batch = np.zeros(1, BATCH)
    batch["base_offset"], batch["last_offset"] = first, last
    batch["leader_epoch"] = batches[-1]["leader_epoch"]
    batch["attributes"] = codec
    batch["producer_id"] = batch["producer_epoch"] = batch["base_sequence"] = -1
    target = new_bytes(room(batches, len(source.records)))
    horizon_ms = _horizon(source, keep, new_horizon_ms)
    address = target.ctypes.data
    end = merge(source.memory.ctypes.data, len(source.memory), records, batch, horizon_ms, address)
    output = np.zeros(1, OUTPUT)[0]
    output["position"] = end - address
    pack(target, output, codec, BatchCodecs())
    return target[: output["position"]].data


def between(source: RecordBatches, first: int, last: int) -> RecordBatches:
    """Return the batches `first` to `last - 1`, in the same memory."""
    batches = source.batches[first:last].copy()
    start = int(batches[0]["first_record"])
    records = source.records[start : start + int(batches["count"].sum())].copy()
    records["batch"] -= first
    batches["first_record"] -= start
    return RecordBatches(source.name, source.memory, source.size, batches, records)


def _horizon(source: RecordBatches, keep: Flags, new_horizon_ms: int) -> int:
    """Return the delete horizon of a batch with these records."""
    batches = source.batches[source.records["batch"][keep & (source.records["value_len"] < 0)]]
    if not len(batches):
        return NO_TIMESTAMP
    has_horizon = batches["attributes"] & DELETE_HORIZON != 0
    return int(np.where(has_horizon, batches["base_timestamp"], new_horizon_ms).max())


def _with_unpacked(data: bytes | memoryview, batches: Records, name: str) -> Bytes:
    source = np.frombuffer(data, np.uint8)
    unpacked = list(_unpacked(source, batches, name))
    memory = new_bytes(len(source) + sum(len(content) for _, content in unpacked))
    memory[: len(source)] = source
    position = len(source)
    for at, content in unpacked:
        batches[at]["payload"] = position
        batches[at]["payload_len"] = len(content)
        memory[position : position + len(content)] = np.frombuffer(content, np.uint8)
        position += len(content)
    _check_counts(batches, name)
    return memory


def _check_counts(batches: Records, name: str) -> None:
    """Refuse counts that exceed the bytes, before memory is allocated for so many records."""
    for batch in batches[batches["count"] * MIN_RECORD_BYTES > batches["payload_len"]][:1]:
        raise _refused_batch(name, KernelStatus.BAD_COUNT, batch)


def _unpacked(source: npt.NDArray[np.uint8], batches: Records, name: str) -> Iterator[tuple[int, bytes]]:
    compressed = (batches["attributes"] & CODEC_MASK != 0) & (batches["payload_len"] > 0)
    codecs: BatchCodecs | None = None
    for at in np.flatnonzero(compressed):
        codecs = codecs or BatchCodecs()
        batch = batches[at]
        start, end = int(batch["payload"]), int(batch["payload"] + batch["payload_len"])
        try:
            codec = BatchCodec(int(batch["attributes"]) & CODEC_MASK)
            yield int(at), codecs.unpack(codec, source[start:end].data)
        except BadCompression as error:
            raise CorruptObject(name, f"{_place(batch)}: {error}") from error


def _place(batch: Records) -> str:
    return f"the batch at offset {batch['base_offset']} (byte {batch['position']})"


def _refused_batch(name: str, status: KernelStatus, batch: Records) -> CorruptObject | Unsupported:
    text = f"{_place(batch)}: {REASONS[status]}"
    if status in _UNKNOWN:
        return Unsupported(f"{name}: {text}; a newer version of Lithify may know them")
    return CorruptObject(name, text)


def _refusal(
    name: str, status: KernelStatus, source: npt.NDArray[np.uint8], position: int, batch: Records, after: int
) -> CorruptObject | Unsupported:
    if status == KernelStatus.BAD_MAGIC:
        magic = int(source[position + MAGIC_AT].view(np.int8))
        if not source[position + LENGTH_AT : position + HEADER_BYTES].any():
            return CorruptObject(name, f"from byte {position} on there are zeros, where a batch should begin")
        if magic in (0, 1):
            return Unsupported(
                f"{name}: at byte {position} begins a message of format {magic}, from before Kafka 0.11; "
                "only folders of segments may have such messages"
            )
        return Unsupported(f"{name}: at byte {position} begins a batch of the unknown message format {magic}")
    if status >= KernelStatus.UNKNOWN_ATTRIBUTES:
        return _refused_batch(name, status, batch)
    return CorruptObject(name, f"the batch at byte {position}: {REASONS[status]}")
