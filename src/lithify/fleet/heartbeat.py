"""The heartbeat of a member: written in each round, and from another thread during long rounds.

1. A round writes the current heartbeat (`say`). It may take long, because a dataset is slow or a pattern
   matches a thousand folders. A member that is taken for dead meanwhile loses all datasets that it leads to
   other members, only to take them back later. So while a round runs, another thread repeats the last
   heartbeat (`beat`) at the promised interval.
2. A heartbeat proves that rounds end. So it is not repeated between two rounds, nor once a round has taken
   `LONGEST_ROUND_S`: a member that hangs counts as dead, and the others continue without it.
3. In the end the newest heartbeat is stored, and none after `leave`: a thread that finds a newer one after
   writing writes that as well. The threads do not wait for each other, so a request that hangs blocks
   nothing else.

A repeated heartbeat is no newer than the round, so it may be stale. That is safe: ledgers and epochs decide
what a member may do, and its need for old catalogs only decreases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lithify.base.clock import Clock
from lithify.fleet.members import FleetMember, MemberFiles

LONGEST_ROUND_S = 600.0
"""Much longer than a slow store takes, and than all waiting in a round for an unavailable store."""


class MemberHeartbeat:
    """The heartbeat of one member. Any thread may call `beat`, one at a time; only the round calls the
    rest."""

    def __init__(self, name: str, files: MemberFiles, clock: Clock) -> None:
        self._name = name
        self._files = files
        self._clock = clock
        self._said: FleetMember | None = None
        """The last heartbeat to write; `None` before the first and after leaving."""
        self._said_s = float("-inf")
        self._round_since_s: float | None = None
        """When the current round began."""

    @contextmanager
    def round(self) -> Iterator[None]:
        """Run a block as a round."""
        self._round_since_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._round_since_s = None

    def say(self, member: FleetMember) -> None:
        """Write this heartbeat."""
        now_s = self._clock.monotonic_s()
        self._said = member
        self._files.beat(member)
        self._said_s = now_s

    def beat(self) -> None:
        """Repeat the last heartbeat if it is due and a round is running."""
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
        """Delete the heartbeat."""
        self._said = None
        self._files.leave(self._name)
