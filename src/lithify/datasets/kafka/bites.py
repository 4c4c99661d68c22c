"""Pieces of a segment, decoded a bite at a time.

A piece is as large as a request should be. What decoding makes of it is several times as large: taken at once
it would neither stay in the processor's cache nor in memory that is used again, and page faults alone would
cost more than the decoding. So a piece is cut between batches, into bites of `BITE_BYTES` or one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lithify.datasets.kafka.kernel.layout import HEADER_BYTES, LENGTH_AT, UNCOUNTED_BYTES
from lithify.datasets.kafka.record_batches import RecordBatches, decode
from lithify.kernel.memory import SLACK

BITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bite:
    """Whole batches."""

    name: str
    """For errors."""
    data: memoryview
    has_slack: bool
    """Whether memory goes on behind it, as compiled code needs it."""


def decoded(
    pieces: Iterable[tuple[str, bytes | memoryview]], *, after: int, bite_bytes: int = BITE_BYTES
) -> Iterator[tuple[RecordBatches, int]]:
    """What is in these pieces, which have whole batches, each time with how many bytes that was; `after` is
    the last offset before them.

    Raises `CorruptObject` and `Unsupported`.
    """
    for bite in bites(pieces, bite_bytes):
        found = decode(bite.data, bite.name, after=after)
        yield found, len(bite.data)
        after = int(found.batches["last_offset"][-1])


def bites(pieces: Iterable[tuple[str, bytes | memoryview]], bite_bytes: int) -> Iterator[Bite]:
    """The pieces cut between batches."""
    for name, data in pieces:
        view, start = memoryview(data), 0
        while start < len(view):
            end = _end_of(view, start, bite_bytes)
            yield Bite(f"{name} + {start}" if start else name, view[start:end], end + SLACK <= len(view))
            start = end


def _end_of(data: memoryview, start: int, bite_bytes: int) -> int:
    """Where the bite ends that begins here. What can be no batch is alone, for who decodes it to refuse."""
    end = start
    while end + UNCOUNTED_BYTES <= len(data):
        at = end + LENGTH_AT
        size = UNCOUNTED_BYTES + int.from_bytes(data[at : at + 4], signed=True)
        if size < HEADER_BYTES or end + size > len(data):
            break
        if end > start and end + size - start > bite_bytes:
            return end
        end += size
    return end if end > start else len(data)
