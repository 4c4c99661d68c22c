"""Damage to the objects of any kind of dataset. A damage changes one dataset and says what it did."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.damage import damaged

Damage = Callable[[Path, random.Random], str]
_ODD_STEMS = ("1", "0" * 21 + "1", "18446744073709551615", "18446744073709551616", "x", "-1", "9" * 20)


def files_in(root: Path, suffix: str = "") -> list[Path]:
    """All objects under a folder whose names end so."""
    return sorted(path for path in root.rglob(f"*{suffix}") if path.is_file())


def damage_bytes(path: Path, others: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Bytes of one object, some of which may come from others."""
    path.write_bytes(damaged(path.read_bytes(), rng, rng.choice(others).read_bytes()))
    return f"bytes of {path.relative_to(root)}"


def replace_object(path: Path, others: Sequence[Path], root: Path, rng: random.Random) -> str:
    """One object is gone, empty, another one's, or a folder."""
    name = path.relative_to(root)
    match rng.randrange(4):
        case 0:
            path.unlink()
            return f"{name} is gone"
        case 1:
            path.write_bytes(b"")
            return f"{name} is empty"
        case 2:
            other = rng.choice(others)
            path.write_bytes(other.read_bytes())
            return f"{name} is a copy of {other.relative_to(root)}"
        case _:
            path.unlink()
            (path / "inside").mkdir(parents=True)
            return f"{name} is a folder"


def copy_under_odd_name(path: Path, root: Path, rng: random.Random) -> str:
    """One object is also there under a name that nothing has."""
    odd = path.with_name(rng.choice(_ODD_STEMS).zfill(rng.choice((0, 20))) + path.suffix)
    odd.write_bytes(path.read_bytes())
    return f"{odd.relative_to(root)} is a copy of {path.relative_to(root)}"


def damage_some(
    root: Path,
    damages: Sequence[tuple[Damage, int]],
    impossible: tuple[type[Exception], ...],
    rng: random.Random,
) -> str:
    """One damage or two, by their weights. What the first one made `impossible` is left out."""
    what = []
    for damage, _ in rng.choices(damages, [weight for _, weight in damages], k=rng.choice((1, 1, 1, 2))):
        try:
            what.append(damage(root, rng))
        except impossible:
            what.append("nothing more")
    return "; ".join(what)
