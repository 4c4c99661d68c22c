"""A member says that it lives: in each of its rounds, and beside one that takes long.

1. A round says what there is to say (`say`). It may take long: a dataset is slow, or a pattern stands for a
   thousand folders. Who is taken for dead because of that loses all that it leads to others, and takes it
   back when they have it. So while a round is under way what was said last is said again from beside it
   (`beat`), as often as was promised.
2. A sign of life proves that rounds end. Between two rounds none is given from beside, nor once a round has
   taken `LONGEST_ROUND_S`: who hangs is dead to the others, and they go on without it.
3. What was said last stands in the end, and nothing after `leave`: who finds something newer when it has
   written writes that as well. Nobody waits for another, so a request that hangs holds nothing else up.

What is said again is no newer than the round, so it may be stale: what a member may do is decided by ledgers
and epochs, and what it needs of old catalogs only becomes less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lithify.base.clock import Clock
from lithify.fleet.members import FleetMember, MemberFiles

LONGEST_ROUND_S = 600.0
"""Much longer than a store that is slow, and than all that waits in a round for one that is away."""


class MemberHeartbeat:
    """Of one member. Any thread may call `beat`, one at a time; all else is the round's."""

    def __init__(self, name: str, files: MemberFiles, clock: Clock) -> None:
        self._name = name
        self._files = files
        self._clock = clock
        self._said: FleetMember | None = None
        """The last thing that was to be said; `None` before and after."""
        self._said_s = float("-inf")
        self._round_since_s: float | None = None
        """When the round began that is under way."""

    @contextmanager
    def round(self) -> Iterator[None]:
        """Run a block that is a round."""
        self._round_since_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._round_since_s = None

    def say(self, member: FleetMember) -> None:
        """That it lives, and this."""
        now_s = self._clock.monotonic_s()
        self._said = member
        self._files.beat(member)
        self._said_s = now_s

    def beat(self) -> None:
        """Say again that it lives, if it is time to and a round is under way."""
        now_s, since_s, said = self._clock.monotonic_s(), self._round_since_s, self._said
        if since_s is None or now_s - since_s >= LONGEST_ROUND_S:
            return
        if said is None or (now_s - self._said_s) * 1000 < said.beats_ms:
            return
        self._files.beat(said)
        self._said_s = now_s
        while (newer := self._said) is not said:
            said = newer
            if said is None:
                self._files.leave(self._name)
            else:
                self._files.beat(said)

    def leave(self) -> None:
        """It ends."""
        self._said = None
        self._files.leave(self._name)
