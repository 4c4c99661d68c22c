"""Which datasets are the fleet's now: what the rules of the catalog name.

1. A rule without `*` names its URL, and nothing is asked for.
2. A pattern is looked up when it is new, then every `LOOK_EVERY_S`. One that cannot be looked up keeps what
   it had found, is reported, and tried again; the others go on. What it does not find any more is the fleet's
   no longer.
3. Of a dataset that several rules name one rule counts (`Catalog.rule_for`).
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
"""URLs of what a rule with a pattern names."""


@dataclass(slots=True)
class _Looked:
    at_s: float
    urls: tuple[str, ...] = ()
    error: LithifyError | None = None


class Discovery:
    """Looks patterns up, again and again."""

    def __init__(self, find: FindDatasets, clock: Clock) -> None:
        self._find = find
        self._clock = clock
        self._looked: dict[str, _Looked] = {}

    @property
    def problems(self) -> Mapping[str, LithifyError]:
        """By pattern, why it could not be looked up the last time."""
        return {pattern: looked.error for pattern, looked in self._looked.items() if looked.error is not None}

    def datasets(self, catalog: Catalog) -> dict[str, DatasetRule]:
        """All datasets of the fleet by URL, with the rule that counts. Looks up what is due."""
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
            with contained(f"looking for {rule.pattern}"):
                looked.urls = tuple(self._find(rule))
        except LithifyError as error:
            looked.urls = before.urls if before is not None else ()
            looked.error = error
        return looked.urls
