"""Writes the kept records of batches in one pass over reused memory.

Compiled code (`kernel/rewrite.py`) reads, checks, filters and writes batch by batch, and returns for each
batch that has to be compressed. Buffers are reused without allocation, since touching new pages costs more
than writing into them.
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
"""Space for a batch's header and a codec's overhead on little data."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    kept: memoryview
    """Valid until the second next write."""
    tally: Tally
    """Number of records by `RemovalReason`, kept ones included."""


class BadRecords(Exception):
    """Invalid records were found; ignore the buffer."""

    def __init__(self, status: KernelStatus, at: int) -> None:
        super().__init__(status, at)
        self.status = status
        self.at = at
        """Index of their batch."""


class Rewriter:
    """A writer of kept records, for one thread. The last non-empty result stays valid during the next write,
    since the writer of a file may still be reading it."""

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
        """Write the kept records of batches whose payloads are positions in `memory`; advance `way`, a
        `PASS`.

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
            self._targets.reverse()  # empty: the next write reuses this buffer and spares the other
        return Rewritten(target[: output["position"]].data, tally)

    def _target(self, size: int) -> Bytes:
        self._targets.reverse()
        if len(self._targets[0]) < size:
            self._targets[0] = new_bytes(size)
        return self._targets[0]


def room(batches: Records, records: int) -> int:
    """Return the most bytes that these batches with so many records can take, whichever are kept: deltas may
    grow, and compression may get worse."""
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
