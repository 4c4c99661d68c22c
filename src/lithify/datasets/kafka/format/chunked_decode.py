"""Decodes pieces of a segment in chunks of `BITE_BYTES`, or of one batch if that is larger.

A piece is as large as a request should be, and decoding makes several times as much of it. Decoded at once,
it would fit neither into the processor's cache nor into reused memory, and page faults alone would cost more
than decoding.
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
    """Yield the decoded chunks of these pieces of whole batches, each with its size in bytes; `after` is the
    last offset before them.

    Raises `CorruptObject` and `Unsupported`.
    """
    for name, data in bites(pieces, bite_bytes):
        found = decode(data, name, after=after)
        yield found, len(data)
        after = int(found.batches["last_offset"][-1])


def bites(
    pieces: Iterable[tuple[str, bytes | memoryview]], bite_bytes: int
) -> Iterator[tuple[str, memoryview]]:
    """Cut the pieces between batches, and name the chunks for errors. Bytes that cannot be a batch come
    alone, for the decoder to refuse."""
    for name, data in pieces:
        view, address, start = memoryview(data), np.frombuffer(data, np.uint8).ctypes.data, 0
        while start < len(view):
            size, _ = whole_batches(address + start, len(view) - start, bite_bytes)
            end = start + size if size else len(view)
            yield f"{name} + {start}" if start else name, view[start:end]
            start = end
