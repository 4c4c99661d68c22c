"""Failures of PyIceberg, its catalogs and its file access, as Lithify's errors.

Errors that a catalog or an object store can be expected to raise are listed here. Any other error is a defect
in code, and is not translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pydantic import ValidationError as InvalidModel
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    ValidationError,
)
from requests import exceptions as http
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from lithify.base.errors import (
    CorruptObject,
    DatasetNotFound,
    LithifyError,
    Refused,
    StoreError,
    StoreUnavailable,
    Unsupported,
    VersionConflict,
)
from lithify.store.resilience.causes import PASSING_STATUS, UNKNOWN_NAME, UNTRUSTED

MAX_SAID = 400
NEWEST_FORMAT = 3
"""The newest format version of tables that can be read."""
_NEW_TYPE = re.compile(r"Unsupported field type: '([a-z][a-z0-9_]{0,40})'")
_PASSING: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (ServiceUnavailableError, "503 Service Unavailable"),
    (TooManyRequestsError, "429 Too Many Requests"),
    ((ServerError, CommitStateUnknownException), "the catalog failed"),
    (http.Timeout, "no answer in time"),
    (http.ChunkedEncodingError, "the answer broke off"),
)
_TEXTS = tuple(
    (re.compile(pattern, re.IGNORECASE), cause)
    for pattern, cause in (
        (r"connection refused", "connection refused"),
        (r"name or service not known|failed to resolve|could not translate host", UNKNOWN_NAME),
        (r"timed? ?out", "no answer in time"),
        (
            r"reset by peer|aborted|broken pipe|closed the connection|lost connection|gone away",
            "the connection broke",
        ),
        (r"starting up|shutting down|too many connections|database is locked", "the catalog is busy"),
    )
)
"""Texts of failed requests and of database errors."""
_UNREACHABLE: tuple[type[Exception], ...] = (OSError, RESTError, SQLAlchemyError, pa.ArrowException)


def said(error: Exception) -> str:
    """Return an error's message in one line, without links to pydantic's manual."""
    return " ".join(str(error).partition("For further information")[0].split())[:MAX_SAID]


def passing(error: Exception) -> tuple[str, bool] | None:
    """Return why a catalog did not respond, if the error is transient, and whether wrong settings may cause
    it too. After such an error of a commit, it is unknown whether the commit took effect."""
    for kinds, cause in _PASSING:
        if isinstance(error, kinds):
            return cause, False
    if isinstance(error, http.HTTPError):
        answer = error.response
        if answer is None or answer.status_code not in PASSING_STATUS:
            return None
        return f"{answer.status_code} {answer.reason}", False
    if isinstance(error, http.SSLError):
        return UNTRUSTED, True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return "the connection broke", False
    if not isinstance(error, (http.ConnectionError, DBAPIError)):
        return None
    told = next((cause for pattern, cause in _TEXTS if pattern.search(str(error))), None)
    if told is None and isinstance(error, http.ConnectionError):
        told = "the connection failed"
    return None if told is None else (told, told == UNKNOWN_NAME)


def undecoded(what: str, error: Exception, reason: str) -> LithifyError:
    """Return the error for metadata that PyIceberg does not decode: `Unsupported` if they are newer than
    Lithify, else `CorruptObject`."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InvalidModel):
        cause = cause.__cause__
    for detail in [] if cause is None else cause.errors(include_url=False):
        version = detail.get("ctx", {}).get("tag", "") if detail["type"] == "union_tag_invalid" else ""
        if version.isdecimal() and int(version) > NEWEST_FORMAT:
            return Unsupported(newer_format(what, int(version)))
        if (kind := _NEW_TYPE.search(detail["msg"])) is not None:
            return Unsupported(
                f"{what}: a column has the type {kind.group(1)}, which this version of Lithify does not know"
            )
    return CorruptObject(what, reason)


def newer_format(what: str, version: int) -> str:
    """Return the message about a table of a format version that is not known."""
    return (
        f"{what}: format version {version} is newer than this version of Lithify, which knows the versions "
        f"up to {NEWEST_FORMAT}; upgrade Lithify"
    )


@contextmanager
def advised(advice: str) -> Iterator[None]:
    """Append advice for operators to the reason of a `CorruptObject`."""
    try:
        yield
    except CorruptObject as error:
        raise CorruptObject(error.name, f"{error.reason}; {advice}") from error


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Run a call of PyIceberg and translate its errors; `what` describes the call for messages."""
    try:
        yield
    except CommitFailedException as error:
        raise VersionConflict(f"{what}: another writer committed first: {error}") from error
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise DatasetNotFound(f"{what}: the table does not exist") from error
    except NotInstalledError as error:
        raise Refused(f"{what}: {error}") from error
    except ValidationError as error:
        raise undecoded(what, error, said(error)) from error
    except _UNREACHABLE as error:
        found = passing(error)
        if found is not None:
            cause, is_doubtful = found
            text = f"{what}: {cause}: {type(error).__name__}: {said(error)}"
            raise StoreUnavailable(text, cause, is_doubtful=is_doubtful) from error
        raise StoreError(f"{what}: {type(error).__name__}: {error}") from error
