"""Lithify's errors, as one tree with the root `LithifyError`.

Each message is one sentence that says what went wrong, in which object, and what to do. The leaves are
grouped by the necessary reaction:

- `Refused`: the request cannot be served safely; nothing was written. The user has to decide.
- `CorruptObject`: bytes in the store do not decode. Nothing is written.
- `StoreError`: the object store answered with a failure, or (`StoreUnavailable`) not at all.
- `Fenced`, `LostOwnership`: another process took over; this one must stop.
- `Replaced`: the dataset was deleted or replaced; all cached state must be dropped.
- `HoldLapsed`: the held data may be deleted; their reader must stop.
- `EngineError`, `Cancelled`: the data engine could not finish.
- `DeadlineExceeded`: waiting ended, the work continues.
- `NoRoom`: a disk of this machine is full.
- `Unexpected`: a defect of Lithify.

Secrets in messages are masked when the error is created.
"""

from __future__ import annotations

from lithify.base.redaction import redact

_MAX_TEXT_CHARS = 2000


class LithifyError(Exception):
    """Root of all errors raised by Lithify."""

    exit_code = 1

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact(a) if isinstance(a, str) else a for a in arguments))


class Refused(LithifyError):
    """The request is refused before anything was written."""

    exit_code = 2


class Unsupported(Refused):
    """A format version, field or feature that this version of Lithify does not support."""


class DatasetNotFound(Refused):
    """The dataset does not exist, not yet or not any more."""


class UnfitStore(Refused):
    """The object store does not guarantee what the protocol requires."""


class CoordinatorAlive(Refused):
    """Another coordinator may be running on this dataset."""

    exit_code = 3

    def __init__(self, message: str, why: str = "") -> None:
        """`why` is the reason without the advice that `message` gives to a command; by default, `message`."""
        super().__init__(message)
        self.why = why or message


class CorruptObject(LithifyError):
    """The bytes of an object do not decode.

    `name` is the object's key and `reason` says what is wrong with it; both are truncated, as keys and names
    in such an object can be very long.
    """

    exit_code = 4

    def __init__(self, name: str, reason: str) -> None:
        self.name = name[:_MAX_TEXT_CHARS]
        self.reason = reason[:_MAX_TEXT_CHARS]
        super().__init__(f"{self.name}: {self.reason}")

    def __reduce__(self) -> tuple[type[CorruptObject], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class StoreError(LithifyError):
    """The object store failed, despite retries."""

    exit_code = 5


class StoreUnavailable(StoreError):
    """The object store cannot be reached, does not answer, or reports that it is overloaded. The same request
    may succeed later. `cause` says why in a few words."""

    def __init__(self, message: str, cause: str = "", *, is_doubtful: bool = False) -> None:
        super().__init__(message)
        self.cause = cause or message
        self.is_doubtful = is_doubtful
        """Whether the cause may be a mistake in the settings."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unavailable, (str(self), self.cause, self.is_doubtful)


def _unavailable(message: str, cause: str, is_doubtful: bool) -> StoreUnavailable:
    return StoreUnavailable(message, cause, is_doubtful=is_doubtful)


class ObjectNotFound(StoreError):
    """No object with this name exists."""


class ObjectExists(StoreError):
    """Create-if-absent found an object with this name."""


class PreconditionFailed(StoreError):
    """A conditional overwrite found an unexpected version."""


class NotServed(StoreError):
    """The object store lacks an operation that Lithify needs."""


class VersionConflict(StoreError):
    """Another process published this version first; read the latest one and decide again."""


class Fenced(LithifyError):
    """A newer coordinator has taken over; this one must stop for good."""

    exit_code = 6


class Replaced(Fenced):
    """The dataset of this process was deleted, recreated, or restored from a backup. No cached state applies
    to its replacement."""


class LostOwnership(LithifyError):
    """This worker does not own the compaction any more."""


class HoldLapsed(LithifyError):
    """A hold expired while its holder needed it: the held data may be deleted."""


class EngineError(LithifyError):
    """The data engine could not start or could not finish a range."""

    exit_code = 7


class EngineDown(EngineError):
    """The data engine has stopped or cannot be reached. This is no evidence against its work."""


class Cancelled(LithifyError):
    """The work was cancelled."""

    exit_code = 8


class DeadlineExceeded(LithifyError):
    """The expected event did not happen in time; it still may."""

    exit_code = 9


class NoRoom(LithifyError):
    """A disk of this machine is full."""


class Unexpected(LithifyError):
    """An unforeseen exception, as wrapped by `lithify.base.defects`."""
