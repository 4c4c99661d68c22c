"""A store that reports every request, by the verbs that object stores bill.

A streamed upload is one PUT, reported on commit. A listing is one request, however long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore

ResultT = TypeVar("ResultT")


class Verb(StrEnum):
    GET = "GET"
    HEAD = "HEAD"
    LIST = "LIST"
    PUT = "PUT"
    DELETE = "DELETE"


class RequestOutcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    MISSING = "missing"
    """The object does not exist."""
    CONFLICT = "conflict"
    """A conditional write found another object."""
    ERROR = "error"


VERBS: Mapping[str, Verb] = {
    "get": Verb.GET,
    "get_with_meta": Verb.GET,
    "get_range": Verb.GET,
    "get_range_into": Verb.GET,
    "get_buffer": Verb.GET,
    "head": Verb.HEAD,
    "list": Verb.LIST,
    "create": Verb.PUT,
    "put": Verb.PUT,
    "copy": Verb.PUT,
    "replace": Verb.PUT,
    "commit": Verb.PUT,
    "delete": Verb.DELETE,
}
"""By method of the store or of its writers. Missing methods send no request."""


class MeteredStore(WrappedStore):
    """Calls `tell` after each request, from the thread that made it."""

    def __init__(self, inner: ObjectStore, tell: Callable[[Verb, RequestOutcome], None]) -> None:
        super().__init__(inner)
        self._tell = tell

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        verb = VERBS.get(call.method)
        if verb is None:
            return action()
        answer = RequestOutcome.ERROR
        try:
            result = action()
            answer = RequestOutcome.OK
        except ObjectNotFound:
            answer = RequestOutcome.MISSING
            raise
        except (ObjectExists, PreconditionFailed):
            answer = RequestOutcome.CONFLICT
            raise
        finally:
            self._tell(verb, answer)
        return result
