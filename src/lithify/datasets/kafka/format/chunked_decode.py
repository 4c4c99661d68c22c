"""Pieces of a segment, decoded a bite at a time.

A piece is as large as a request should be. What decoding makes of it is several times as large: taken at once
it would neither stay in the processor's cache nor in memory that is used again, and page faults alone would
cost more than the decoding. So a piece is cut between batches, into bites of `BITE_BYTES` or one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from lithify.datasets.kafka.format.kernel.headers import whole_batches
from lithify.datasets.kafka.format.record_batches import RecordBatches, decode

BITE_BYTES = 512 << 10


def decoded(
    pieces: Iterable[tuple[str, bytes | memoryview]], *, after: int, bite_bytes: int = BITE_BYTES
) -> Iterator[tuple[RecordBatches, int]]:
    """What is in these pieces, which have whole batches, each time with how many bytes that was; `after` is
    the last offset before them.

    Raises `CorruptObject` and `Unsupported`.
    """
    for name, data in bites(pieces, bite_bytes):
        found = decode(data, name, after=after)
        yield found, len(data)
        after = int(found.batches["last_offset"][-1])


def bites(
    pieces: Iterable[tuple[str, bytes | memoryview]], bite_bytes: int
) -> Iterator[tuple[str, memoryview]]:
    """The pieces cut between batches, with names for errors. What can be no batch is alone, for who decodes
    it to refuse."""
    for name, data in pieces:
        view, address, start = memoryview(data), np.frombuffer(data, np.uint8).ctypes.data, 0
        while start < len(view):
            size, _ = whole_batches(address + start, len(view) - start, bite_bytes)
            end = start + size if size else len(view)
            yield f"{name} + {start}" if start else name, view[start:end]
            start = end
