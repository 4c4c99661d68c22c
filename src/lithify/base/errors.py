"""Every error Lithify raises on purpose, as one tree.

`LithifyError` is the root: catching it catches all that Lithify can foresee. Each message is one
sentence that says what went wrong, in which object, and what to do. The leaves group by who has to
act:

- `Refused`: the request cannot be served safely; nothing was written. The user has to decide.
- `CorruptObject`: bytes in the store do not decode. Nothing is written.
- `StoreError`: the object store answered with a failure, or (`StoreUnavailable`) not at all.
- `Fenced`, `LostOwnership`: another process took over; this one must stop.
- `Replaced`: the dataset is gone, or another is in its place; whatever is known of it must be forgotten.
- `HoldLapsed`: what was held may be gone; whoever relied on it must stop.
- `EngineError`, `Cancelled`: the data engine could not finish.
- `DeadlineExceeded`: waiting ended, the work goes on.
- `NoRoom`: a disk of this machine is full.
- `Unexpected`: what nobody foresaw, a defect of Lithify.

No message shows a secret, whatever it was made of: it is masked when the error is made.
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
    """A format version, field or feature this version of Lithify does not know."""


class DatasetNotFound(Refused):
    """What the URL names does not exist, so far or any more."""


class UnfitStore(Refused):
    """The object store does not keep what the protocol rests on."""


class CoordinatorAlive(Refused):
    """Another coordinator may be running on this dataset."""

    exit_code = 3


class CorruptObject(LithifyError):
    """The bytes of an object do not decode.

    `name` is the object's key and `reason` says what is wrong with it; both are cut where they are very long,
    as keys and names that such an object holds can be.
    """

    exit_code = 4

    def __init__(self, name: str, reason: str) -> None:
        self.name = name[:_MAX_TEXT_CHARS]
        self.reason = reason[:_MAX_TEXT_CHARS]
        super().__init__(f"{self.name}: {self.reason}")

    def __reduce__(self) -> tuple[type[CorruptObject], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class StoreError(LithifyError):
    """The object store failed and retrying did not help."""

    exit_code = 5


class StoreUnavailable(StoreError):
    """The object store cannot be reached, does not answer, or says that it is overloaded. Nothing is known
    against what was asked of it; later it may work.

    `cause` says why in a few words.
    """

    def __init__(self, message: str, cause: str = "", *, is_doubtful: bool = False) -> None:
        super().__init__(message)
        self.cause = cause or message
        self.is_doubtful = is_doubtful
        """Whether it may as well be a mistake in the settings."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unavailable, (str(self), self.cause, self.is_doubtful)


def _unavailable(message: str, cause: str, is_doubtful: bool) -> StoreUnavailable:
    return StoreUnavailable(message, cause, is_doubtful=is_doubtful)


class ObjectNotFound(StoreError):
    """No object of that name exists."""


class ObjectExists(StoreError):
    """Create-if-absent found an object of that name."""


class PreconditionFailed(StoreError):
    """A conditional overwrite found another version than the expected one."""


class NotServed(StoreError):
    """The object store does not have an operation that Lithify needs."""


class VersionConflict(StoreError):
    """Another party published this version first; read the latest one and decide again."""


class Fenced(LithifyError):
    """A newer coordinator has taken over; this one must stop for good."""

    exit_code = 6


class Replaced(Fenced):
    """The dataset that this process worked with is gone: it was deleted, made anew, or restored from a
    backup. Nothing that is known of it holds for what is in its place."""


class LostOwnership(LithifyError):
    """The compaction is no longer owned by this worker."""


class HoldLapsed(LithifyError):
    """A hold ended before its holder did: what it kept may be gone."""


class EngineError(LithifyError):
    """The data engine could not start or could not finish a range."""

    exit_code = 7


class EngineDown(EngineError):
    """The data engine itself is gone or cannot be reached. Nothing is wrong with the work it was given."""


class Cancelled(LithifyError):
    """The work was cancelled."""

    exit_code = 8


class DeadlineExceeded(LithifyError):
    """What was waited for did not happen in time; it may still."""

    exit_code = 9


class NoRoom(LithifyError):
    """A disk of this machine is full."""


class Unexpected(LithifyError):
    """An exception nobody foresaw; `lithify.base.defects` makes it of that."""
