"""Findings of checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lithify.base.errors import NotServed, StoreError
from lithify.base.redaction import redact


class Severity(Enum):
    OK = "ok"
    WARNING = "warning"
    """It works, but an operator should look at it."""
    PROBLEM = "problem"
    """Something does not work, or soon will not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    check: str
    """A short name, the same for all results."""
    severity: Severity
    says: str
    """One sentence."""
    do: str = ""
    """The advice for the operator; empty only when nothing has to be done."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "says", redact(self.says))


def ok(check: str, says: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, Severity.OK, says)


def warning(check: str, says: str, do: str) -> Finding:
    """Return a finding that an operator should look at."""
    return Finding(check, Severity.WARNING, says, do)


def problem(check: str, says: str, do: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(check, Severity.PROBLEM, says, do)


def advice(error: StoreError, do: str) -> str:
    """Return the advice for a store error: `do`, except for a store that lacks an operation."""
    return "use another store, as the error says" if isinstance(error, NotServed) else do
