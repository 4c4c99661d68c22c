"""Writing what stays of record batches, in one pass over memory that is used again.

Records are read, checked, decided on and written batch by batch in compiled code (`kernel/rewrite.py`),
which comes back for each batch that has to be compressed. Nothing is made for a record but its bytes, and
nothing is allocated for a bite once buffers are large enough: pages that a process has not touched yet cost
more than what is written into them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lithify.datasets.kafka.format.codecs import BatchCodec, BatchCodecs
from lithify.datasets.kafka.format.kernel.headers import seal_batch
from lithify.datasets.kafka.format.kernel.layout import (
    CODEC_MASK,
    HEADER_BYTES,
    MAX_RECORD_OVERHEAD_BYTES,
    OUTPUT,
    RECORD,
    KernelStatus,
    Records,
)
from lithify.datasets.kafka.format.kernel.retaining import RemovalReason, Tally, Verdicts
from lithify.datasets.kafka.format.kernel.rewrite import rewrite
from lithify.kernel.buffers import Bytes, new_bytes

_BATCH_ROOM_BYTES = 256
"""For the header of a batch and what a codec adds to few bytes."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What stays of some batches."""

    kept: memoryview
    """Bytes that stay as they are until the next but one are written."""
    tally: Tally
    """How many records go, by `RemovalReason`."""


class BadRecords(Exception):
    """Records that are refused; nothing that counts was written."""

    def __init__(self, status: KernelStatus, at: int) -> None:
        super().__init__(status, at)
        self.status = status
        self.at = at
        """Number of their batch."""


class Rewriter:
    """Writes what stays, for one thread. What was handed out last that has any bytes stays as it is while the
    next is written: whoever writes a file may still read it."""

    def __init__(self) -> None:
        self._targets = [new_bytes(0), new_bytes(0)]
        self._scratch = np.empty(0, RECORD)
        self._codecs: BatchCodecs | None = None

    def write(
        self,
        memory: Bytes,
        batches: Records,
        verdicts: Verdicts,
        way: Records,
    ) -> Rewritten:
        """Of batches whose payloads are counted from the start of `memory`; `way` is a `PASS`, moved on.

        Raises `BadRecords`.
        """
        most = int(batches["count"].max(initial=0))
        if len(self._scratch) < most:
            self._scratch = np.empty(most, RECORD)
        target = self._target(int(batches["size"].sum()) + room(batches, int(batches["count"].sum())))
        tally = np.zeros(len(RemovalReason), np.int64)
        outputs = np.zeros(1, OUTPUT)
        output = outputs[0]
        output["buffer"] = target.ctypes.data
        places = memory.ctypes.data, len(memory), batches, verdicts, way, self._scratch, tally, outputs
        while (status := KernelStatus(rewrite(*places))) == KernelStatus.PACK:
            self._codecs = self._codecs or BatchCodecs()
            codec = BatchCodec(int(batches[output["batch"] - 1]["attributes"]) & CODEC_MASK)
            pack(target, output, codec, self._codecs)
        if status != KernelStatus.OK:
            raise BadRecords(status, int(output["batch"]) - 1)
        if not output["position"]:
            self._targets.reverse()  # nobody is handed this one, so the next goes here, not into the other
        return Rewritten(target[: output["position"]].data, tally)

    def _target(self, size: int) -> Bytes:
        """Where the next go."""
        self._targets.reverse()
        if len(self._targets[0]) < size:
            self._targets[0] = new_bytes(size)
        return self._targets[0]


def room(batches: Records, records: int) -> int:
    """The most bytes that these batches with so many records can have when they are written again, whatever
    of them is kept: deltas may grow, and what is compressed may be larger than before."""
    payload_bytes = int(batches["payload_len"].sum()) + MAX_RECORD_OVERHEAD_BYTES * records
    return payload_bytes + payload_bytes // 6 + _BATCH_ROOM_BYTES * len(batches)


def pack(target: Bytes, output: Records, codec: BatchCodec, codecs: BatchCodecs) -> None:
    """Compress and seal the batch that was written last."""
    start = int(output["batch_start"])
    payload = start + HEADER_BYTES
    packed = codecs.pack(codec, target[payload : output["position"]].data)
    end = payload + len(packed)
    target[payload:end] = np.frombuffer(packed, np.uint8)
    seal_batch(target.ctypes.data + start, end - start)
    output["position"] = end
