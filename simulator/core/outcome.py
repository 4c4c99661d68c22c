"""What comes of a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


class Violation(BaseException):
    """An invariant does not hold. No handler of errors may stop it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return type(self), (self.rule, self.text)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violation: Violation | None
    counts: Counter[str]
    virtual_ms: int
