"""User functions that take part in a compaction, named by import path.

Merge operator: `function(key, existing, operand) -> bytes`. `existing` is the value so far, `None` when
there is none. It must be associative: operands are also combined with each other, in groups.

Compaction filter: `function(row) -> Keep | Drop | Modify`. It sees every row that would be written, each
version of a key by itself, newest first, after expiry and retention:

- `Keep()` writes the row as it is.
- `Drop()` leaves it out. An older version that is kept shows through again.
- `Modify(value)` writes it with another value and keeps its sequence number and creation time. A merge
  operand stays one, everything else becomes a value. `Modify(None)` writes a tombstone, which has no
  expiry time.

Both must be pure functions: a range may be executed more than once, in another process.

A compaction filter may also be a class, `Filter(context: FilterContext)`. Each attempt to execute a range
makes one instance. It is called with the range's rows in the order of keys, and may keep state meanwhile.
After the last row its method `end()` is called, if it has one; not after an error. The context says what the
filter may do: if `is_last_run`, no older version of a key lies below the rows that it sees, so that dropping
all of them deletes the key. In other runs a dropped row uncovers older ones. The filter of a resumed range
sees only the rows that are not written yet.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lithify.base.errors import Refused

MergeOperator = Callable[[bytes, bytes | None, bytes], bytes]


class RowKind(Enum):
    """The effect of a row on its key."""

    VALUE = "value"
    TOMBSTONE = "tombstone"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Row:
    """One version of a key."""

    key: bytes
    seq: int
    kind: RowKind
    value: bytes | None
    """`None` for a tombstone; the operand of a merge row."""
    create_ms: int | None = None
    """When the row was written, in wall-clock milliseconds."""
    expire_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Write the row as it is."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave the row out."""


@dataclass(frozen=True, slots=True)
class Modify:
    """Write the row with another value; `None` makes it a tombstone."""

    value: bytes | None


FilterDecision = Keep | Drop | Modify


@dataclass(frozen=True, slots=True)
class FilterContext:
    """The compaction that a filter takes part in."""

    segment: bytes
    """Prefix of the segment; empty for the root tree."""
    destination: int
    """Number of the sorted run that is written."""
    is_last_run: bool
    """Whether that is the oldest run of its tree."""
    clock_tick_ms: int
    """The time by which rows expire: the newest that the writer has flushed."""
    retention_min_seq: int
    """Rows with this sequence number or a higher one may be needed by a snapshot."""


class CompactionFilter:
    """The user's compaction filter, checked to return decisions."""

    def __init__(self, path: str, context: FilterContext) -> None:
        """Raise `Refused` if it cannot be loaded or made."""
        self._name = f"compaction filter {path!r}"
        self._decide = load_function(path, "compaction filter")
        if isinstance(self._decide, type):
            self._decide = _call(self._decide, self._name, None, context)
            if not callable(self._decide):
                raise Refused(f"{self._name}: its instances cannot be called with a row")

    def __call__(self, row: Row) -> FilterDecision:
        decision = _call(self._decide, self._name, row.key, row)
        if not isinstance(decision, Keep | Drop | Modify):
            raise Refused(
                f"{self._name} returned {decision!r} instead of Keep(), Drop() or Modify(...) "
                f"for key {row.key!r}"
            )
        return decision

    def end(self) -> None:
        """Tell the filter that it has seen all rows."""
        end = getattr(self._decide, "end", None)
        if callable(end):
            _call(end, f"the end of {self._name}", None)


def load_function(path: str, purpose: str) -> Callable[..., Any]:
    """Return the function at the import path `package.module:function`. `purpose` names it in errors."""
    module_name, separator, function_name = path.partition(":")
    if not separator or not module_name or not function_name:
        raise Refused(f"{purpose} {path!r} is not an import path of the form package.module:function")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # Any error that a user's module raises while it is imported is reported the same way.
        raise Refused(
            f"{purpose} {path!r}: module {module_name} cannot be imported ({error!r}); "
            f"it must be importable on every Spark worker"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise Refused(f"{purpose} {path!r}: module {module_name} has no function {function_name}")
    return function  # type: ignore[no-any-return]


def load_merge_operator(path: str) -> MergeOperator:
    """Return the user's merge operator, checked to return bytes."""
    function = load_function(path, "merge operator")

    def merge(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
        result = _call(function, f"merge operator {path!r}", key, key, existing, operand)
        if not isinstance(result, bytes):
            raise Refused(
                f"merge operator {path!r} returned {type(result).__name__} instead of bytes for key {key!r}"
            )
        return result

    return merge


def _call(function: Callable[..., Any], name: str, key: bytes | None, *arguments: object) -> Any:
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        at = "" if key is None else f" for key {key!r}"
        raise Refused(f"{name} failed{at}: {error!r}; nothing of this range was published") from error
