"""A store that refuses writes, for commands with `--read-only`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lithify.base.errors import StoreError
from lithify.store.wrapped import Call, WrappedStore

ResultT = TypeVar("ResultT")

READS = frozenset(
    {"get", "get_with_meta", "get_range", "get_range_into", "get_buffer", "head", "list", "list_staged"}
)
"""Methods of a store that write nothing."""


class ReadOnlyStore(WrappedStore):
    """Forwards reads; raises `StoreError` for all other calls before anything is sent."""

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method in READS:
            return action()
        raise StoreError(f"{call.method} {call.key}: nothing may be written here (--read-only)")
