"""Seeded damage to files, and what comes of it.

`damaged` makes one damaged copy of some bytes; the same generator state gives the same damage. `fuzz`
runs many cases over several targets. A target is any function of bytes: a decoder of one block here, a
whole run over a database elsewhere. Each case must end in a value or a `LithifyError`; anything else
propagates, with a note that says which seed, target and case it was.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lithify.base.errors import LithifyError

INTERESTING = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""Numbers at the edges of what offsets and lengths can be."""
ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Target:
    """Good bytes, and what is done with damaged copies of them."""

    name: str
    data: bytes
    use: Callable[[bytes], object]


def _flip_bits(data: bytearray, rng: random.Random, _donor: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, rng: random.Random, _donor: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def _extend(data: bytearray, rng: random.Random, _donor: bytes) -> None:
    data += rng.randbytes(rng.randrange(1, 40))


def _randomise(data: bytearray, rng: random.Random, _donor: bytes) -> None:
    start = rng.randrange(len(data))
    length = min(rng.choice((1, 4, 32, len(data))), len(data) - start)
    data[start : start + length] = rng.randbytes(length)


def _set_number(data: bytearray, rng: random.Random, _donor: bytes) -> None:
    """A wrong offset, length, count or size, mostly near the truth or at an edge."""
    layout = rng.choice(("<H", "<I", "<Q", ">H", ">I", ">Q"))
    size = struct.calcsize(layout)
    if len(data) < size:
        return
    at = rng.randrange(len(data) - size + 1) // 2 * 2
    at = min(at, len(data) - size)
    near = struct.unpack_from(layout, data, at)[0] + rng.randrange(-16, 17)
    value = rng.choice((near, rng.choice(INTERESTING), len(data) - at, rng.getrandbits(8 * size)))
    struct.pack_into(layout, data, at, value & ((1 << 8 * size) - 1))


def _splice(data: bytearray, rng: random.Random, donor: bytes) -> None:
    """A piece from elsewhere in these bytes, or from others."""
    source = rng.choice((bytes(data), donor)) or bytes(data)
    start = rng.randrange(len(source))
    piece = source[start : start + rng.choice((2, 4, 8, 64))]
    at = rng.randrange(len(data))
    data[at : at + (0 if rng.random() < 0.2 else len(piece))] = piece


def _cut_out(data: bytearray, rng: random.Random, _donor: bytes) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 2, 4, 64))]


_DAMAGES = (_flip_bits, _truncate, _extend, _randomise, _set_number, _set_number, _splice, _cut_out)


def damaged(data: bytes, rng: random.Random, donor: bytes = b"") -> bytes:
    """A damaged copy of `data` (not necessarily a different one)."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if changed:
            rng.choice(_DAMAGES)(changed, rng, donor)
    return bytes(changed)


def fuzz(targets: Sequence[Target], cases: int, seed: int) -> Counter[str]:
    """Run `cases` cases over the targets in turn. How often each ended in which way."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for case in range(cases):
        target = targets[case % len(targets)]
        data = damaged(target.data, rng, rng.choice(targets).data)
        try:
            target.use(data)
        except LithifyError as error:
            outcomes[f"{target.name}: {type(error).__name__}"] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, case {case}, target {target.name}: {data.hex()}")
            raise
        else:
            outcomes[f"{target.name}: {ACCEPTED}"] += 1
    return outcomes
