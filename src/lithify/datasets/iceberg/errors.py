"""Failures of PyIceberg, its catalogs and its file access, as Lithify's errors.

What a catalog or an object store can be expected to throw is listed here. Anything else is a defect of
somebody's code, and passes through as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ValidationError,
)
from sqlalchemy.exc import SQLAlchemyError

from lithify.errors import CorruptObject, DatasetNotFound, Refused, StoreError, VersionConflict

MAX_SAID = 400
_UNREACHABLE: tuple[type[Exception], ...] = (OSError, RESTError, SQLAlchemyError, pa.ArrowException)


def said(error: Exception) -> str:
    """What an error says, in one line and without addresses of pydantic's manual."""
    return " ".join(str(error).partition("For further information")[0].split())[:MAX_SAID]


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Run a call of PyIceberg; `what` says what it was, for people."""
    try:
        yield
    except CommitFailedException as error:
        raise VersionConflict(f"{what}: another party committed first: {error}") from error
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise DatasetNotFound(f"{what}: the table does not exist; check the URL: {error}") from error
    except NotInstalledError as error:
        raise Refused(f"{what}: {error}") from error
    except ValidationError as error:
        raise CorruptObject(what, said(error)) from error
    except _UNREACHABLE as error:
        raise StoreError(f"{what}: {type(error).__name__}: {error}") from error
