"""Stores and a clock for tests of Lithify and of programs built on it.

- `MemoryStore`: a store in a dictionary.
- `ManualClock`: time that moves only when told to; sleeping takes none.
"""

from lithify.testing.clock import ManualClock
from lithify.testing.memory import MemoryStore

__all__ = ["ManualClock", "MemoryStore"]
