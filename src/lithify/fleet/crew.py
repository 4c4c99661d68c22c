"""A crew: the workers of one process, which serve one or more queues of a fleet. One tick, over ports.

Each `tick`:

1. Every `BEAT_EVERY_MS` it says that it lives and how much of its room is free, and looks at the catalog. A
   queue that is paused is not claimed from; one that was deleted is not served any more. When all the queues
   are gone that it was started for, it is over.
2. The compactions that run here go on (`lithify.service.worker_pool`).
3. While there is room it asks the bells of its queues (`lithify.planning.fleet.asking`), and reads the boards
   when one was rung, or when nothing was heard for long.
4. Of what the boards hint at it claims one after the other, in the order of `lithify.planning.fleet.hints`,
   each in the ledger of its dataset: that alone decides. What others were faster with is left alone.

What it knows may be lost: what it holds is in the ledgers, and is taken back when its heartbeats end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lithify.clock import Clock
from lithify.errors import LithifyError
from lithify.fleet.bells import Ear
from lithify.fleet.catalog import Catalog, Queue, QueueState, Rule
from lithify.fleet.catalog_files import FollowedCatalog
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import BEAT_EVERY_MS, Load, Member, Role
from lithify.ids import Ulid
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.asking import Asking
from lithify.planning.fleet.hints import Hint, HintChoice
from lithify.planning.fleet.slots import Slots, Usage, reserved_of
from lithify.service.worker_pool import WorkerPool


@dataclass(frozen=True, slots=True)
class NoSource:
    """A pool that is told each time what to claim."""

    def urls(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, slots=True)
class CrewPorts:
    """What a crew needs."""

    files: FleetFiles
    pool: WorkerPool
    """With `NoSource`."""
    clock: Clock
    host: str
    version: str


@dataclass(slots=True)
class _Served:
    """A queue that is served here."""

    queue: Queue
    ear: Ear
    reserved: int = 0
    """Slots of this process that are kept for what is small or urgent."""


class Crew:
    """The workers of one process, under a name of its own."""

    def __init__(self, name: str, ports: CrewPorts, queues: Sequence[str] = ()) -> None:
        """For these queues, by name, or for all there are. `Refused` when there is none of that name,
        `DatasetNotFound` when there is no such fleet."""
        self.name = name
        self._ports = ports
        self._files = ports.files
        self._pool = ports.pool
        self._clock = ports.clock
        self._catalog = FollowedCatalog(ports.files.catalog)
        catalog = self._catalog.now.catalog
        self._only = {catalog.queue(name).id for name in queues} if queues else None
        """Ids of queues; a name that is made again is another queue."""
        self._served: dict[str, _Served] = {}
        self._choice = HintChoice(name)
        self._asking = Asking(self._now_ms())
        self._claimed: dict[tuple[str, Ulid], tuple[str, Hint]] = {}
        """What runs here, with the id of its queue."""
        self._beat_s = float("-inf")
        self._asked_s = float("-inf")
        self._follow()

    @property
    def is_over(self) -> bool:
        """Whether all the queues are gone that it was to serve."""
        return self._only is not None and not self._served

    @property
    def idle_s(self) -> float:
        """For how long nothing has run and nothing was claimed."""
        return 0.0 if self._pool.is_busy else (self._now_ms() - self._asking.idle_since_ms) / 1000

    @property
    def problem(self) -> LithifyError | None:
        """What is wrong with the newest catalog, if it is not the one that is followed."""
        return self._catalog.problem

    def rule_for(self, url: str) -> Rule:
        """How the dataset at `url` is treated; as if nothing was said where its rule is gone."""
        return self._catalog.now.catalog.rule_for(url) or Rule(url)

    def start(self) -> None:
        """Be there for the keepers. `EngineDown`, before that, when what the engine needs is plainly not
        there."""
        self._pool.start()
        self._beat()

    def tick(self) -> bool:
        """One round of the algorithm above; whether anything was claimed, finished or given back. A
        `StoreError` means that the fleet's own store failed; what runs goes on with the next round."""
        changed = self._pool.round()
        now_ms = self._now_ms()
        for url, failed in self._pool.take_failures():
            self._choice.failed(WorkKey(url, failed), now_ms)
        held = self._pool.holding()
        if self._claimed.keys() - held:
            self._claimed = {key: claimed for key, claimed in self._claimed.items() if key in held}
            self._asking = Asking(now_ms)
        self._beat()
        if not self.is_over and self._has_room():
            self._ask()
            changed = self._claim() or changed
        return changed

    def due_in_s(self) -> float:
        """Seconds until it has to ask again."""
        pause_s = self._asking.bell_pause_ms(self._now_ms()) / 1000
        return max(0.0, self._asked_s + pause_s - self._clock.monotonic_s())

    def wait(self, timeout_s: float) -> None:
        """Return when something that runs here has an end, or after `timeout_s`."""
        self._pool.wait(timeout_s)

    def close(self) -> None:
        """Give back what is unfinished, and leave."""
        self._pool.release()
        self._files.members.leave(self.name)

    # Catalog and members

    def _follow(self) -> None:
        catalog: Catalog = self._catalog.now.catalog
        queues = [queue for queue in catalog.queues if self._only is None or queue.id in self._only]
        before, self._served = self._served, {}
        for queue in queues:
            known = before.get(queue.id)
            ear = known.ear if known is not None else Ear(self._files.bells, queue.id)
            self._served[queue.id] = _Served(queue, ear, self._reserved(queue))

    def _reserved(self, queue: Queue) -> int:
        """Only who serves a queue with a reserve has to know who else does."""
        if not queue.reserved_slots:
            return 0
        alive = [seen.name for seen in self._files.members.listed() if seen.is_alive]
        names = [name for name in alive if name.startswith(f"{Role.WORKER.value}-")]
        says = self._files.members.read(names)
        slots = {name: m.load[queue.id].slots for name, m in says.items() if queue.id in m.load}
        return reserved_of(self.name, {**slots, self.name: self._slots}, queue.reserved_slots)

    def _beat(self) -> None:
        now_s = self._clock.monotonic_s()
        if (now_s - self._beat_s) * 1000 < BEAT_EVERY_MS:
            return
        self._catalog.refresh()
        self._follow()
        running = [queue_id for queue_id, _ in self._claimed.values()]
        load = {
            queue_id: Load(
                slots=self._slots if served.queue.state is not QueueState.PAUSED else 0,
                running=running.count(queue_id),
            )
            for queue_id, served in self._served.items()
        }
        number = self._catalog.now.number
        host, version = self._ports.host, self._ports.version
        self._files.members.beat(Member(self.name, Role.WORKER, host, version, number, 0, load))
        self._beat_s = now_s

    # Claims

    @property
    def _slots(self) -> int:
        return self._pool.held + self._pool.idle_slots

    def _room(self) -> tuple[dict[str, Slots], Usage, dict[str, int]]:
        """By queue id the slots, how many are used, and by queue id its weight."""
        total = self._slots
        slots = {
            queue_id: Slots(total, total - served.reserved)
            for queue_id, served in self._served.items()
            if served.queue.state is not QueueState.PAUSED
        }
        ordinary = sum(not hint.may_use_reserve for _, hint in self._claimed.values())
        # What is given back and cannot be told so yet takes room as well.
        usage = Usage(max(self._pool.held, len(self._claimed)), ordinary)
        return slots, usage, {queue_id: served.queue.weight for queue_id, served in self._served.items()}

    def _has_room(self) -> bool:
        return self._pool.idle_slots > 0

    def _ask(self) -> None:
        now_ms = self._now_ms()
        if self.due_in_s() > 0:
            return
        self._asked_s = self._clock.monotonic_s()
        # All are asked: who has heard one goes on listening to the others.
        rung = [served.ear.hears() for served in self._served.values()]
        if any(rung):
            self._asking = self._asking.rung()
        if self._asking.reads_boards(now_ms, has_rung=any(rung)):
            boards = {queue_id: self._files.boards.read(queue_id) for queue_id in self._served}
            self._choice.see(boards, now_ms)
            self._asking = self._asking.missed(now_ms)

    def _claim(self) -> bool:
        """Claim until there is no room, or nothing to claim."""
        has_claimed = False
        while self._has_room():
            slots, usage, weights = self._room()
            now_ms = self._now_ms()
            found = self._choice.next(slots, usage, weights, now_ms)
            if found is None:
                break
            queue_id, hint = found
            if self._pool.claim(hint.url, Ulid(hint.compaction)):
                self._choice.claimed(hint, slots, usage, weights, now_ms)
                self._claimed[hint.url, Ulid(hint.compaction)] = queue_id, hint
                self._asking = self._asking.claimed(now_ms)
                has_claimed = True
            else:
                self._choice.lost(hint, now_ms)
        return has_claimed

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)
