"""Former names of settings, which are still read, with a warning that shows the new names.

One former name may stand for several settings: collecting garbage was one setting and is now one per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from lithify.base.errors import Refused
from lithify.config.sections import MILLISECONDS, OwnSection

Path = tuple[str, ...]


class FormerNames:
    """The former names of the settings of these sections."""

    def __init__(self, sections: Iterable[type[OwnSection]]) -> None:
        sections = tuple(sections)
        self._renamed = [
            (tuple(old.split(".")), (section.NAME, *new.split(".")))
            for section in sections
            for old, new in section.FORMERLY.items()
        ]
        self._foreign = {
            old: (section.NAME, *new.split(".")) if new else ()
            for section in sections
            for old, new in section.FOREIGN.items()
        }
        self.tops = frozenset(old[0] for old, _ in self._renamed)
        """The first parts of these names."""

    def dotted(self) -> list[str]:
        """Return all former names, with dots."""
        return [".".join(old) for old, _ in self._renamed]

    def adopt(
        self, given: Mapping[str, Any], is_setting: Callable[[str], bool], sections: Collection[str]
    ) -> tuple[Mapping[str, Any], list[str]]:
        """Return a file's values without the ones that mean nothing here, and the names of these, if the file
        is another system's: it has names of that system at its top, and none of the `sections`. Return other
        files as they are."""
        if not self._foreign.keys() & given.keys() or set(sections) & given.keys():
            return given, []
        result: dict[str, Any] = {}
        skipped: list[str] = []
        now_of = {path: self._names_now(path) for path, _ in leaves(given)}
        finer = {
            now for names in now_of.values() for now in names
        }  # the compactor's own win over the writer's
        for path, value in leaves(given):
            now = self._foreign.get(path[0], ())
            targets = [now] if now and now not in finer else now_of[path]
            if value is None or not any(map(is_setting, map(".".join, targets))):
                skipped.append(".".join(path))
            else:
                put(result, now or path, value)
        return result, skipped

    def translate(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return one source's values under the present names, and the former names that it used by present
        dotted names. Unknown names are kept. Raise `Refused` if a setting is given under both names."""
        result = _copy({top: value for top, value in given.items() if top not in self.tops})
        formerly: dict[str, str] = {}
        for path, value in leaves({top: value for top, value in given.items() if top in self.tops}):
            for target in self._names_now(path) or [path]:
                old, new = ".".join(path), ".".join(target)
                if not put(result, target, value):
                    raise Refused(f"{old} and {new} are the same setting; give only {new}")
                if target != path:
                    formerly[new] = old
        return result, formerly

    def _names_now(self, path: Path) -> list[Path]:
        plain = (*path[:-1], path[-1].removesuffix(MILLISECONDS))
        unit = path[-1][len(plain[-1]) :]
        found = []
        for old, new in self._renamed:
            if plain[: len(old)] == old:
                now = (*new, *plain[len(old) :])
                found.append((*now[:-1], now[-1] + unit))
        return found


def leaves(
    given: Mapping[str, Any], path: Path = (), *, with_empty: bool = False
) -> Iterator[tuple[Path, Any]]:
    """Yield each value that is not a mapping, or is an empty one if `with_empty`, with the keys that lead to
    it."""
    for key, value in given.items():
        if isinstance(value, Mapping) and (value or not with_empty):
            yield from leaves(value, (*path, key), with_empty=with_empty)
        else:
            yield (*path, key), value


def _copy(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in given.items()}


def put(target: dict[str, Any], path: Path, value: object) -> bool:
    """Put a value at these keys. Return false if there is one already, or a key leads through a plain
    value."""
    for key in path[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            return False
        target = inner
    if path[-1] in target:
        return False
    target[path[-1]] = value
    return True
