"""Assignment of datasets to members by rendezvous hashing.

1. Each member draws a number for each dataset: blake2b over the member's name and the dataset's URL.
2. The member with the highest draw watches the dataset; among equals the first by name.

Invariants: all processes that know the same members agree, in whatever order they know them. A new member
takes only its own datasets, and a leaving one leaves only those it had: between the others nothing moves.

The same draws are used wherever processes that do not communicate have to choose differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_BYTES = 8
_DRAWS: int = 1 << 8 * _BYTES


def draw(name: str, key: str) -> int:
    """Return a pseudo-random number that is always the same for these two arguments."""
    named = name.encode(errors="surrogatepass")
    text = b"%d:%b%b" % (len(named), named, key.encode(errors="surrogatepass"))
    return int.from_bytes(blake2b(text, digest_size=_BYTES).digest())


def fraction(name: str, key: str) -> float:
    """Return the same number scaled to 0 up to below 1."""
    return (draw(name, key) >> 11) / (_DRAWS >> 11)


def ranking(key: str, names: Iterable[str]) -> list[str]:
    """Return all of `names`, ordered by their draw for `key`, the highest first."""
    return sorted(sorted(set(names)), key=lambda name: -draw(name, key))


class Placement:
    """The assignment of datasets to the live members."""

    def __init__(self, members: Iterable[str]) -> None:
        self.members = tuple(sorted(set(members)))

    def owner(self, url: str) -> str | None:
        """Return the member that watches the dataset at `url`; `None` while there is no member."""
        return max(self.members, key=lambda member: draw(member, url), default=None)
