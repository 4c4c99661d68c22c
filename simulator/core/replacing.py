"""What all worlds put in place of the real thing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import lithify.base.errors
from lithify.base import concurrency
from lithify.base.concurrency import Background


@contextmanager
def replacing(background: Background) -> Iterator[Callable[[Any, str, Any], None]]:
    """Run what is done beside the caller by `background`. No error is searched for secrets, and the log is
    silent; the trace has it all. The function that this gives replaces one more thing for as long: its owner,
    its name, and the new value."""
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        put(logging.getLogger("lithify"), "disabled", True)
        put(logging.getLogger("lithify.base.defects"), "disabled", True)
        put(lithify.base.errors, "redact", lambda text: text)
        put(concurrency, "background", background)
        yield put
