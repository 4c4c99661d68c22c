"""The task offers of one fleet coordinator: their content, their addressees, and when they are written.

Each `write`:

1. Takes the tasks that are claimable now. Offers already published stay as they are, including their
   addressee; a task that was tried and is free again gets a new offer.
2. Addresses each new offer to an idle worker that has not failed with the task, as long as there are any. A
   worker is idle according to its last heartbeat, less the offers addressed to it since. Workers that no
   other coordinator prefers come first, and among them those that were given work in the last `BUSY_MS`:
   such a worker polls twice as often, and work that a process has done before is faster there. The others
   poll less and less often.
3. Writes the files that have changed, each at most once in `WRITE_EVERY_MS`, and unchanged ones again after
   `WRITE_AGAIN_MS`; then notifies the workers that new offers are addressed to. If offers were only
   removed, writing may wait for `TAKE_OFF_AFTER_MS`: so a file is not written for each claim, and claims do
   not delay new offers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lithify.fleet.files import FleetFiles
from lithify.fleet.members import FleetMember
from lithify.fleet.task_queue_files import TAKE_OFF_AFTER_MS, WRITE_AGAIN_MS, WRITE_EVERY_MS, order
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.polling import BUSY_MS
from lithify.planning.fleet.task_offers import ClaimOffer, meant_for


@dataclass(frozen=True, slots=True)
class Claimable:
    """A task that may be claimed."""

    queue_id: str
    key: WorkKey
    """The work that the task does."""
    hint: ClaimOffer
    """The offer, without an addressee."""


@dataclass(frozen=True, slots=True)
class IdleWorkers:
    """The workers that offers may be addressed to."""

    free: Mapping[str, Mapping[str, int]]
    """Idle slots according to the workers' heartbeats, by queue id and worker."""
    is_suspect: Callable[[str], bool]
    """Return whether a worker gets no new offers."""
    failed_with: Callable[[WorkKey], Collection[str]]
    """Return the workers that failed with a task."""
    is_own: Callable[[str], bool]
    """Return whether this coordinator prefers a worker, and no other coordinator that knows the same members
    does."""


@dataclass(slots=True)
class _Board:
    """The offers in one queue, as last written."""

    hints: tuple[ClaimOffer, ...] = ()
    written_s: float = float("-inf")
    less_since_s: float | None = None
    """Since when the file has had offers that are not claimable any more."""


class OwnBoards:
    """The task offers of the member of this name."""

    def __init__(self, name: str, files: FleetFiles) -> None:
        self._name = name
        self._files = files
        self._boards: dict[str, _Board] = {}
        """By queue id."""
        self._given: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Offers addressed to each worker since its last report of idle slots, by queue id."""
        self._said_ms: dict[str, int] = {}
        """Times of the members' last heartbeats, by their own clocks."""
        self._given_s: dict[str, float] = {}
        """When an offer was last addressed to each worker."""
        self.due_s = float("inf")
        """When a file that has changed may be written."""

    def hints(self, queue_id: str) -> tuple[ClaimOffer, ...]:
        """Return the published offers of a queue."""
        board = self._boards.get(queue_id)
        return () if board is None else board.hints

    def heard(self, says: Mapping[str, FleetMember]) -> None:
        """Forget the offers addressed to workers whose heartbeat is new, since that accounts for them."""
        said = {name: member.at_ms for name, member in says.items()}
        for given in self._given.values():
            for name in [name for name in given if said.get(name) != self._said_ms.get(name)]:
                del given[name]
        self._said_ms = said

    def write(
        self, claimable: Iterable[Claimable], queue_ids: Collection[str], workers: IdleWorkers, now_s: float
    ) -> None:
        """Replace all offers by these claimable tasks; `queue_ids` are the queues that exist."""
        self.due_s = float("inf")
        self._given_s = {name: s for name, s in self._given_s.items() if (now_s - s) * 1000 < BUSY_MS}
        found = self._addressed(claimable, workers)
        for queue_id in dict.fromkeys([*self._boards, *found]):  # in a deterministic order, for replays
            board = self._boards.setdefault(queue_id, _Board())
            hints = tuple(found.get(queue_id, ()))
            is_old = bool(hints) and (now_s - board.written_s) * 1000 >= WRITE_AGAIN_MS
            if hints == board.hints and not is_old:
                board.less_since_s = None
                continue
            known = {_id_of(hint) for hint in board.hints}
            new = [hint for hint in hints if _id_of(hint) not in known]
            may_s = board.written_s + WRITE_EVERY_MS / 1000
            if not is_old and set(hints) < set(board.hints):
                board.less_since_s = now_s if board.less_since_s is None else board.less_since_s
                may_s = max(may_s, board.less_since_s + TAKE_OFF_AFTER_MS / 1000)
            if now_s < may_s:
                self.due_s = min(self.due_s, may_s)
                continue
            write = partial(self._files.boards.write, queue_id, self._name, hints)
            if new:
                self._files.bells.ring(queue_id, self._name, new, write)
            else:
                write()
            self._boards[queue_id] = _Board(hints, now_s)
            given = [hint.worker for hint in new if hint.worker is not None]
            self._given[queue_id].update(given)
            self._given_s.update(dict.fromkeys(given, now_s))
        for queue_id in [q for q, board in self._boards.items() if q not in queue_ids and not board.hints]:
            del self._boards[queue_id]

    def clear(self) -> None:
        """Delete all offers."""
        for queue_id in self._boards:
            self._files.boards.write(queue_id, self._name, ())

    def _addressed(self, claimable: Iterable[Claimable], workers: IdleWorkers) -> dict[str, list[ClaimOffer]]:
        """Return the offers of each queue, in order, with their addressees."""
        known = {_id_of(hint): hint for board in self._boards.values() for hint in board.hints}
        keys: dict[WorkKey, WorkKey] = {}
        found: dict[str, list[ClaimOffer]] = {}
        for one in claimable:
            keys[one.hint.key] = one.key
            before = known.get(_id_of(one.hint))
            hint = one.hint
            if before is not None:
                hint = replace(hint, worker=before.worker, idle_workers=before.idle_workers)
            found.setdefault(one.queue_id, []).append(hint)
        for queue_id, hints in found.items():
            hints.sort(key=order)
            new = {_id_of(hint) for hint in hints} - known.keys()
            free = self._free(queue_id, workers)
            ranks = {name: self._rank(name, workers) for name in free} if new else {}
            whom = meant_for(
                (hint.key for hint in hints if _id_of(hint) in new),
                free,
                lambda key: workers.failed_with(keys[key]),
                ranks.__getitem__,
            )
            found[queue_id] = [
                replace(hint, worker=whom.get(hint.key), idle_workers=len(free))
                if _id_of(hint) in new
                else hint
                for hint in hints
            ]
        return found

    def _rank(self, name: str, workers: IdleWorkers) -> int:
        """Return the rank of a worker for addressing offers; the lowest comes first."""
        return 2 * (not workers.is_own(name)) + (name not in self._given_s)

    def _free(self, queue_id: str, workers: IdleWorkers) -> dict[str, int]:
        """Return how many more offers each worker can take."""
        given = self._given[queue_id]
        return {
            name: slots - given[name]
            for name, slots in workers.free.get(queue_id, {}).items()
            if slots > given[name] and not workers.is_suspect(name)
        }


def _id_of(hint: ClaimOffer) -> tuple[str, str, int]:
    return hint.url, hint.compaction, hint.attempts
