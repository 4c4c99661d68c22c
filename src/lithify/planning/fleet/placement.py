"""Which member watches a dataset: rendezvous hashing.

1. Each member draws a number for each dataset: blake2b over the name of the one and the URL of the other.
2. The highest draw watches it; of equal ones the first by name.

Invariants: all who know the same members agree, whatever the order in which they know them. Who comes takes
only what is its own from then on, and who goes leaves only what it had: between the others nothing moves.

The same draws serve wherever parties that do not speak to each other have to choose differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_BYTES = 8
_DRAWS: int = 1 << 8 * _BYTES


def draw(name: str, key: str) -> int:
    """A number that is always the same for these two, and as good as random otherwise."""
    named = name.encode(errors="surrogatepass")
    text = b"%d:%b%b" % (len(named), named, key.encode(errors="surrogatepass"))
    return int.from_bytes(blake2b(text, digest_size=_BYTES).digest())


def fraction(name: str, key: str) -> float:
    """The same from 0 to below 1."""
    return (draw(name, key) >> 11) / (_DRAWS >> 11)


def ranking(key: str, names: Iterable[str]) -> list[str]:
    """All of `names`, the one that has the highest draw for `key` first."""
    return sorted(sorted(set(names)), key=lambda name: -draw(name, key))


class Placement:
    """Datasets over the members that are alive now."""

    def __init__(self, members: Iterable[str]) -> None:
        self.members = tuple(sorted(set(members)))

    def owner(self, url: str) -> str | None:
        """Who watches the dataset at `url`; `None` while there is no member."""
        return max(self.members, key=lambda member: draw(member, url), default=None)

    def share(self, member: str, urls: Iterable[str]) -> list[str]:
        """What `member` watches of these, in their order."""
        return [url for url in urls if self.owner(url) == member]
