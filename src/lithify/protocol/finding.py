"""One thing a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lithify.base.errors import NotServed, StoreError
from lithify.base.redaction import redact


class Severity(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but somebody should look."""
    PROBLEM = "problem"
    """Something does not work, or soon will not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says."""

    check: str
    """A short name, the same whatever is found."""
    severity: Severity
    says: str
    """One sentence."""
    do: str = ""
    """What to do; empty only when nothing is to be done."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "says", redact(self.says))


def ok(check: str, says: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, says)


def warning(check: str, says: str, do: str) -> Finding:
    """Somebody should look."""
    return Finding(check, Severity.WARNING, says, do)


def problem(check: str, says: str, do: str) -> Finding:
    """Something does not work."""
    return Finding(check, Severity.PROBLEM, says, do)


def advice(error: StoreError, do: str) -> str:
    """Return what to do about an error of a store: `do`, but for a store that lacks an operation."""
    return "use another store, as it says" if isinstance(error, NotServed) else do
