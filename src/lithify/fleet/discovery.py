"""Discovery of a fleet's datasets: those that the catalog's rules name.

1. A rule without `*` names its URL, which needs no request.
2. A pattern is looked up when it is new, then every `LOOK_EVERY_S`. If the lookup fails, the pattern keeps
   its last result, the error is reported, and the lookup is retried; other patterns proceed. Datasets that
   a pattern does not find any more leave the fleet.
3. If several rules name a dataset, one applies (`Catalog.rule_for`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lithify.base.clock import Clock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.fleet.catalog.model import Catalog, DatasetRule, by_breadth
from lithify.fleet.catalog.patterns import canonical, is_pattern, normal

LOOK_EVERY_S = 300.0

FindDatasets = Callable[[DatasetRule], Iterable[str]]
"""Return the URLs that a rule with a pattern names."""


@dataclass(slots=True)
class _Looked:
    at_s: float
    urls: tuple[str, ...] = ()
    error: LithifyError | None = None


class Discovery:
    """Looks up patterns repeatedly."""

    def __init__(self, find: FindDatasets, clock: Clock) -> None:
        self._find = find
        self._clock = clock
        self._looked: dict[str, _Looked] = {}

    @property
    def problems(self) -> Mapping[str, LithifyError]:
        """Errors of the last lookup, by pattern."""
        return {pattern: looked.error for pattern, looked in self._looked.items() if looked.error is not None}

    def datasets(self, catalog: Catalog) -> dict[str, DatasetRule]:
        """Return all datasets of the fleet by URL, with the rule that applies. Look up the patterns that are
        due."""
        patterns = [rule for rule in catalog.rules if is_pattern(rule.pattern)]
        self._looked = {r.pattern: self._looked[r.pattern] for r in patterns if r.pattern in self._looked}
        found = {normal(rule.pattern): rule for rule in catalog.rules if not is_pattern(rule.pattern)}
        for rule in by_breadth(patterns):
            for url in self._urls(rule):
                found.setdefault(canonical(url), rule)
        return found

    def _urls(self, rule: DatasetRule) -> tuple[str, ...]:
        now_s = self._clock.monotonic_s()
        before = self._looked.get(rule.pattern)
        if before is not None and now_s - before.at_s < LOOK_EVERY_S:
            return before.urls
        looked = self._looked[rule.pattern] = _Looked(now_s)
        try:
            with contained(f"resolving {rule.pattern}"):
                looked.urls = tuple(self._find(rule))
        except LithifyError as error:
            looked.urls = before.urls if before is not None else ()
            looked.error = error
        return looked.urls
