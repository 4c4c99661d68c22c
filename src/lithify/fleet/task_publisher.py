"""The boards of one keeper: what it hints at, for whom, and when they are written. Each `write`:

1. Takes what may be claimed now. What stood on a board stays as it is, for whom it is included; what was
   tried and is free again is another hint.
2. Addresses each new hint to a worker that is idle and has not failed with it, as long as there are some. A
   worker is idle that said so, less what it was given since it said it. First come those that no other
   keeper gives to first, and of these who had something in the last `BUSY_MS`: such a worker asks twice as
   often, and what a process did before is faster there. The others ask ever more rarely.
3. Writes the boards that have changed, each at most once in `WRITE_EVERY_MS`, and again after
   `WRITE_AGAIN_MS` what did not change; then it rings the bell for those whom something new is for. A board
   that only has less to say may wait for `TAKE_OFF_AFTER_MS`, so that it is not written for each claim, and
   what is new need not wait because of that.
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
from lithify.planning.fleet.task_offers import Hint, meant_for


@dataclass(frozen=True, slots=True)
class Claimable:
    """What may be claimed."""

    queue_id: str
    key: WorkKey
    """What it does."""
    hint: Hint
    """For nobody yet."""


@dataclass(frozen=True, slots=True)
class IdleWorkers:
    """Who may be given something."""

    free: Mapping[str, Mapping[str, int]]
    """Slots that nothing runs in, as the workers said, by queue id and name."""
    is_suspect: Callable[[str], bool]
    """Whether a worker is given nothing new."""
    failed_with: Callable[[WorkKey], Collection[str]]
    """Which workers failed with something."""
    is_own: Callable[[str], bool]
    """Whether a worker is given to by this keeper first, and by no other that knows the same members."""


@dataclass(slots=True)
class _Board:
    """The board of one queue, as it was written last."""

    hints: tuple[Hint, ...] = ()
    written_s: float = float("-inf")
    less_since_s: float | None = None
    """Since when it says more than there is."""


class OwnBoards:
    """The boards of the member of this name."""

    def __init__(self, name: str, files: FleetFiles) -> None:
        self._name = name
        self._files = files
        self._boards: dict[str, _Board] = {}
        """By queue id."""
        self._given: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By queue id, how many hints were meant for a worker since it said how many slots are free."""
        self._said_ms: dict[str, int] = {}
        """When members said what is known of them, by their own clocks."""
        self._given_s: dict[str, float] = {}
        """When a hint was last meant for a worker."""
        self.due_s = float("inf")
        """When a board may be written that has changed."""

    def hints(self, queue_id: str) -> tuple[Hint, ...]:
        """What the board of a queue says."""
        board = self._boards.get(queue_id)
        return () if board is None else board.hints

    def heard(self, says: Mapping[str, FleetMember]) -> None:
        """Who has said anew how much room it has knows of what it was given before."""
        said = {name: member.at_ms for name, member in says.items()}
        for given in self._given.values():
            for name in [name for name in given if said.get(name) != self._said_ms.get(name)]:
                del given[name]
        self._said_ms = said

    def write(
        self, claimable: Iterable[Claimable], queue_ids: Collection[str], workers: IdleWorkers, now_s: float
    ) -> None:
        """This is all that may be claimed now; `queue_ids` are those of the queues that there are."""
        self.due_s = float("inf")
        self._given_s = {name: s for name, s in self._given_s.items() if (now_s - s) * 1000 < BUSY_MS}
        found = self._addressed(claimable, workers)
        for queue_id in dict.fromkeys([*self._boards, *found]):  # in an order that can be replayed
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
        """Nothing of it may be claimed any more."""
        for queue_id in self._boards:
            self._files.boards.write(queue_id, self._name, ())

    def _addressed(self, claimable: Iterable[Claimable], workers: IdleWorkers) -> dict[str, list[Hint]]:
        """The hints of each queue, in their order, with the workers whom they are for."""
        known = {_id_of(hint): hint for board in self._boards.values() for hint in board.hints}
        keys: dict[WorkKey, WorkKey] = {}
        found: dict[str, list[Hint]] = {}
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
        """Who has the least is given to first."""
        return 2 * (not workers.is_own(name)) + (name not in self._given_s)

    def _free(self, queue_id: str, workers: IdleWorkers) -> dict[str, int]:
        """How many more hints each worker can take up."""
        given = self._given[queue_id]
        return {
            name: slots - given[name]
            for name, slots in workers.free.get(queue_id, {}).items()
            if slots > given[name] and not workers.is_suspect(name)
        }


def _id_of(hint: Hint) -> tuple[str, str, int]:
    return hint.url, hint.compaction, hint.attempts
