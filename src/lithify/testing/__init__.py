"""Stores and a clock for tests of Lithify and of programs built on it.

- `MemoryStore`: a store in a dictionary.
- `CountingStore`: counts requests by verb, and bytes.
- `DelayingStore`: sleeps before each call.
- `FaultyStore`: fails, loses answers, truncates or kills at chosen calls; `crash_at_every_call` kills a
  function at each of its calls in turn.
- `lithify.testing.s3`: an S3 server over HTTP, in memory, that can be slow, flaky and down.
- `ManualClock`: time that moves only when a test advances it; sleeping takes none.

The stores can be nested: `CountingStore(FaultyStore.crash_at(MemoryStore(clock), 7))`. For another wrapper,
subclass `WrappedStore` and override `around`.
"""

from lithify.store.metered import Verb
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.clock import ManualClock
from lithify.testing.counting import CountingStore
from lithify.testing.faulty import (
    Crash,
    CrashSite,
    DelayingStore,
    FaultyStore,
    StoreFault,
    crash_at_every_call,
)
from lithify.testing.memory import MemoryStore

__all__ = [
    "Call",
    "CountingStore",
    "Crash",
    "CrashSite",
    "DelayingStore",
    "FaultyStore",
    "ManualClock",
    "MemoryStore",
    "StoreFault",
    "Verb",
    "WrappedStore",
    "crash_at_every_call",
]
