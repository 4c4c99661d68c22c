"""What is noted while a seed is played: how often what happened, a trace, and the violation that ends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from lithify.base import events
from simulator.core.fibers import Scheduler
from simulator.core.outcome import Outcome, Violation
from simulator.core.waiting import told_at


class RecordedWorld(ABC):
    """A world, as far as it is recorded."""

    seed: int
    scheduler: Scheduler
    watcher: object | None
    """Who judges; `None` when all is over."""

    def __init__(self, trace: Callable[[str], None] | None) -> None:
        self.counts: Counter[str] = Counter()
        self.violation: Violation | None = None
        self._trace = trace

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ms

    @abstractmethod
    def end(self) -> None:
        """What still runs ends at its next call."""

    def fail(self, rule: str, text: str) -> Violation:
        """Record that an invariant does not hold; the caller raises what this returns."""
        if self.violation is None:
            self.violation = Violation(rule, text)
            self.log("judge", f"VIOLATION of {rule}: {text}")
            self.end()
        return self.violation

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def observer(self, who: str, then: events.Observer = events.ignore) -> events.Observer:
        """Count and trace what happens to `who`, and pass it on."""

        def observe(event: events.Event) -> None:
            name = type(event).__name__
            self.count(f"event: {name}")
            if self.is_traced:
                fields = [n for cls in type(event).__mro__ for n in getattr(cls, "__slots__", ())]
                self.log(who, f"{name} " + " ".join(f"{field}={getattr(event, field)}" for field in fields))
            then(event)

        return observe

    def log(self, who: str, text: str) -> None:
        if self._trace is not None:
            self._trace(told_at(self.now_ms, who, text))

    @property
    def is_traced(self) -> bool:
        return self._trace is not None


def played(
    world: RecordedWorld, replaced: AbstractContextManager[object], play: Callable[[], None]
) -> Outcome:
    """What comes of `play`, while something is `replaced`. Afterwards all that still runs has ended."""
    started_ms = world.now_ms
    with replaced:
        try:
            play()
        except Violation:
            pass  # it is the world's
        finally:
            world.end()
            world.watcher = None
            world.scheduler.close()
    return Outcome(world.seed, world.violation, world.counts, world.now_ms - started_ms)
