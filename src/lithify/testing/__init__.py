"""Stores and a clock for tests of Lithify and of programs built on it.

- `MemoryStore`: a store in a dictionary.
- `CountingStore`: counts requests by verb, and bytes.
- `DelayingStore`: sleeps before each call.
- `FaultyStore`: fails, loses answers, truncates or kills at chosen calls; `crash_at_every_call`
  lets a function die at each of its calls in turn.
- `lithify.testing.s3`: an S3 over HTTP, in memory, that can be slow, flaky and down.
- `ManualClock`: time that moves only when told to; sleeping takes none.

The stores wrap each other: `CountingStore(FaultyStore.crash_at(MemoryStore(clock), 7))`. A wrapper of
one's own is a `WrappedStore` that overrides `around`.
"""

from lithify.store.metered import Verb
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.clock import ManualClock
from lithify.testing.counting import CountingStore
from lithify.testing.delaying import DelayingStore
from lithify.testing.faulty import Crash, CrashSite, FaultyStore, StoreFault, crash_at_every_call
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
