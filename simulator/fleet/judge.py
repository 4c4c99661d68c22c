"""The judge: sees every write and every deletion of members, and says what does not hold (`rules`).

What is true of a dataset it works out from what is written. Of members it looks at what they hold
in memory only to know what they need, lead, and have been told.

*Peace* begins when nothing goes wrong any more and all know who is alive: then some rules hold to the second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lithify.base.clock import SystemClock
from lithify.coordination.leases import ObjectLease
from lithify.coordination.thresholds import decode as decode_threshold
from lithify.fleet.coordinator import FleetCoordinator
from lithify.fleet.watched_dataset import QUARANTINE_PAUSE
from lithify.fleet.worker import FleetWorker
from lithify.planning.fleet.faults import SUSPECT_DATASETS
from lithify.protocol.attempts import Attempt
from lithify.protocol.lease import Lease
from lithify.protocol.model import CompactionState, Ledger
from simulator.core.fibers import EPOCH_MS
from simulator.core.outcome import Violation
from simulator.fleet import rules
from simulator.fleet.scenario import (
    COLLECT_EVERY_MS,
    COLLECT_FIRST_MS,
    COORDINATOR,
    FAILOVER_MS,
    SMALL_QUEUE,
    SMALL_QUEUE_BYTES,
    WORKER,
    WorkerPlan,
)
from simulator.fleet.shelves import (
    FOLDER,
    LEDGERS,
    Names,
    Place,
    ShelfCompaction,
    ShelfLedger,
    compaction_of,
    decode,
)
from simulator.fleet.world import FLEET, Process, World

ADMITTED_AFTER_PAUSE_MS = 50_000
"""What was admitted before its queue was paused may begin so much later, when its dataset is led."""
CLAIMED_AFTER_PAUSE_MS = 15_000
"""So long it takes a worker to hear of it."""
IDLE_MS = 75_000
"""A notification that is lost, offers claimed by nobody then, and those that are for others first."""
SEEN_SLACK_MS = 20_000
"""A round of a coordinator, which looks at others before."""
SICK_SLACK_MS = 2_000


@dataclass(slots=True)
class _Facts:
    """What is known of a dataset."""

    names: Names = ()
    numbers: dict[str, int] = field(default_factory=dict)
    """The last version of each kind of numbered file."""
    ledger: ShelfLedger = field(default_factory=Ledger)
    lease: Lease | None = None
    committed: set[str] = field(default_factory=set)
    beats_ms: dict[str, int] = field(default_factory=dict)
    """By compaction, when its worker last wrote that it lives."""
    submitted_ms: dict[str, int] = field(default_factory=dict)
    failed_ms: dict[str, int] = field(default_factory=dict)
    """By coordinator, when a look at it failed."""
    changed_ms: int = 0
    """When its names changed last."""
    unseen: tuple[int, int] | None = None
    """When the first thing has arrived that no coordinator has read, and how long the silence before was."""


@dataclass(slots=True)
class _Sickness:
    """What a worker that fails whatever it tries has failed with in peace."""

    datasets: set[str] = field(default_factory=set)
    count: int = 0
    last_ms: int = 0


class Judge:
    """Sees all; see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.coordinators: dict[str, FleetCoordinator] = {}
        self.workers: dict[str, FleetWorker] = {}
        self.plans: dict[str, WorkerPlan] = {}
        self.processes: dict[str, Process] = {}
        self.ticks: defaultdict[str, int] = defaultdict(int)
        """Of coordinators, by name; also of who is dead, as all of these."""
        self.is_peace = False
        self.paused_ms: int | None = None
        """Since when the small queue is paused, in peace."""
        self.is_taken = False
        """An operator has asked to take over what owners that are gone have left."""
        self.is_quiet = False
        """Nothing healthy is to be written any more."""
        self._collected_ms: dict[str, int] = {}
        """By URL, when it was last cared for."""
        self._facts = {name: _Facts(names=place.names) for name, place in world.places.items()}
        self._strays: set[str] = set()
        """Objects that were written in the place of a dataset, by processes that knew the one before."""
        self._anew: set[str] = set()
        """Datasets that were made anew."""
        self._said: dict[str, list[int]] = {}
        """When members wrote their objects, since these are there."""
        self._thresholds: list[tuple[int, int]] = []
        """When a higher one was published, and which."""
        self._settled_ms: int | None = None
        """Since when, or from when on, the members know each other; `None` before peace."""
        self._sick: defaultdict[str, _Sickness] = defaultdict(_Sickness)
        """By worker."""
        self.tally: Counter[str] = Counter()
        """How many claims of all workers have succeeded since the members know each other, and how many were
        lost."""
        self._idle_ms: dict[tuple[str, str], int] = {}
        """Since when a worker has a free slot beside a compaction that it may claim."""
        self._shown: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        """By coordinator and worker: with which datasets it failed, and in which tick that was first seen."""

    def close(self) -> None:
        """All is over: what coordinators have open is closed, which reaches nobody any more."""
        for coordinator in self.coordinators.values():
            for watched in coordinator.watched.values():
                if watched._lead is not None:
                    with suppress(BaseException):
                        watched._lead.managed.resign()

    def fail(self, rule: str, text: str) -> Violation:
        return self._world.fail(rule, text)

    # What is written

    def wrote(self, process: Process | None, key: str, data: bytes) -> None:
        folder, _, rest = key.partition("/")
        if folder == FOLDER:
            self._wrote_of(process, self._world.places[rest.partition("/")[0]], key, data)
        elif folder == FLEET:
            self._wrote_of_fleet(rest, data)

    def deletes(self, process: Process | None, key: str) -> None:
        """Something of the fleet is about to go."""
        parts = key.split("/")
        if parts[:2] == [FLEET, "members"]:
            self._said.pop(parts[2].removesuffix(".json"), None)
        elif parts[:2] == [FLEET, "catalog"]:
            self._check_needed(int(parts[2].removesuffix(".json")))
        elif (
            process is not None
            and parts[0] == FOLDER
            and _is_version(key)
            and key not in self._strays
            and not self._takes_back(key)
        ):
            raise self.fail(rules.ANEW, f"{process.name} deletes {key}")
        self._strays.discard(key)

    def _takes_back(self, key: str) -> bool:
        """Whether this version, about to go, was built on one that was taken back; if so, forget it."""
        folder, number = key.rpartition("/")[0], _number(key)
        before = [meta.key for meta in self._world.objects.list(folder) if meta.key < key]
        if not before or _number(before[-1]) == number - 1:
            return False
        facts, data = self._facts[key.split("/")[1]], self._world.objects.get(before[-1])
        if folder.endswith("/index"):
            facts.names, facts.numbers["index"] = decode(data, key), _number(before[-1])
        else:
            facts.ledger, facts.numbers["ledger"] = LEDGERS.decode(data, key), _number(before[-1])
        self._world.count("event: built on what was taken back")
        return True

    def strayed(self, process: Process, key: str) -> None:
        """Something of a dataset that is gone was written in its place."""
        self._world.count("event: written to another dataset")
        process.log(f"has written {key} to another dataset")
        self._strays.add(key)

    def made_anew(self, place: Place) -> None:
        """All that was known of the one before is nothing to it."""
        ledger = place.ledger or Ledger()
        since_ms = {str(c.id): 0 for c in ledger.active()}
        self._facts[place.plan.name] = _Facts(
            names=place.names,
            ledger=ledger,
            beats_ms=dict(since_ms),
            submitted_ms=dict(since_ms),
        )
        self._anew.add(place.url)
        for shown in self._shown.values():
            shown.pop(place.url, None)

    def _wrote_of(self, process: Process | None, place: Place, key: str, data: bytes) -> None:
        plan, facts = place.plan, self._facts[place.plan.name]
        part = key.removeprefix(f"{FOLDER}/{plan.name}/")
        if process is not None and (plan.is_idle or (self.is_quiet and plan.is_healthy)):
            raise self.fail(rules.IDLE, f"{process.name} writes {key}")
        if part.startswith("index/"):
            if process is None:  # the writer published again before its version was taken back
                self._strays.discard(f"{key.rpartition('/')[0]}/{_number(key) - 1:020}.json")
            self._follows(facts, "index", part)
            self._changed(process, place, facts, decode(data, key))
        elif part.startswith("_lithify/ledger/"):
            self._follows(facts, "ledger", part)
            self._wrote_ledger(process, place, facts, LEDGERS.decode(data, key))
        elif part == "_lithify/coordinator.json":
            self._wrote_lease(process, place, facts)

    def _follows(self, facts: _Facts, kind: str, part: str) -> None:
        number = _number(part)
        if number != facts.numbers.get(kind, number - 1) + 1:
            raise self.fail(rules.ONCE, f"{part} is written after number {facts.numbers[kind]}")
        facts.numbers[kind] = number

    def _changed(self, process: Process | None, place: Place, facts: _Facts, names: Names) -> None:
        now_ms = self._world.now_ms
        if process is None and facts.unseen is None:
            facts.unseen = now_ms, now_ms - facts.changed_ms
        facts.changed_ms = now_ms
        before, after = dict(facts.names), dict(names)
        facts.names = names
        new = [name for name in after if name not in before]
        made = [name for name in new if compaction_of(name) is not None]
        if process is None:
            return
        gone = sorted(n for name in before if name not in after for n in place.contents[name])
        if len(after) != len(names) or gone != sorted(n for name in new for n in place.contents[name]):
            raise self.fail(rules.ONCE, f"{process.name} changes what {place.plan.name} stands for")
        for name in made:
            compaction = compaction_of(name) or ""
            if compaction in facts.committed:
                raise self.fail(rules.ONCE, f"{compaction} of {place.plan.name} is committed twice")
            facts.committed.add(compaction)
            self._world.count("event: in the index")

    # Ledgers

    def _wrote_ledger(
        self, process: Process | None, place: Place, facts: _Facts, ledger: ShelfLedger
    ) -> None:
        before, facts.ledger = facts.ledger, ledger
        if process is None:
            return
        if place.plan.is_foreign and not self.is_taken and before.epoch != ledger.epoch:
            raise self.fail(rules.FENCED, f"{process.name} takes {place.plan.name} from its owner")
        for compaction in ledger.compactions:
            old = before.get(compaction.id)
            if old != compaction:
                self._moved(process, place, facts, old, compaction)
        left = {c.id for c in ledger.compactions}
        for old in before.active():
            is_done = old.state is CompactionState.COMPACTED and not place.is_of_former(old.spec)
            if is_done and old.id not in left and old.id not in facts.committed:
                raise self.fail(rules.COMMITTING, f"{process.name} forgets {old.id} of {place.plan.name}")

    def _moved(
        self,
        process: Process,
        place: Place,
        facts: _Facts,
        old: ShelfCompaction | None,
        new: ShelfCompaction,
    ) -> None:
        now_ms, what = self._world.now_ms, f"{new.id} of {place.plan.name}"
        before = None if old is None else old.state
        if before is not new.state:
            self._world.count(f"step: {new.state.value} by {process.kind}")
        if (
            not place.is_of_former(new.spec)
            and before is CompactionState.COMPACTED
            and new.state is not CompactionState.COMPLETED
        ):
            raise self.fail(rules.COMMITTING, f"{process.name} makes {what} {new.state.name}, which is done")
        if before is None:
            facts.submitted_ms[new.id] = now_ms
            self._begun(place, facts, new, ADMITTED_AFTER_PAUSE_MS, f"{process.name} admits {what}")
        is_beat = (
            new.state in (CompactionState.RUNNING, CompactionState.COMPACTED) and process.kind == "worker"
        )
        if (
            before is CompactionState.RUNNING
            and new.state is CompactionState.SCHEDULED
            and process.kind == "coordinator"
        ):
            silent_ms = now_ms - facts.beats_ms[new.id]
            if silent_ms < COORDINATOR.worker_heartbeat_timeout_ms:
                text = (
                    f"{process.name} takes {what} back {silent_ms / 1000:.1f} s after its worker has beaten"
                )
                raise self.fail(rules.BEATING, text)
            self._world.count("event: taken back")
        elif is_beat:
            facts.beats_ms[new.id] = now_ms
        elif before is CompactionState.RUNNING and self.is_peace and self._is_sick(process.member):
            sickness = self._sick[process.member]
            sickness.datasets.add(place.url)
            sickness.count, sickness.last_ms = sickness.count + 1, now_ms
        if before is not CompactionState.RUNNING and new.state is CompactionState.RUNNING:
            self._claimed(process, place, facts, new)

    def _claimed(self, process: Process, place: Place, facts: _Facts, claimed: ShelfCompaction) -> None:
        what = f"{process.name} claims {claimed.id} of {place.plan.name}"
        sickness = self._sick[process.member]
        rest_ms = WORKER.rest.after_ms(sickness.count) if len(sickness.datasets) > 1 else 0
        rested_ms = self._world.now_ms - sickness.last_ms
        if SICK_SLACK_MS < rested_ms < rest_ms - SICK_SLACK_MS:  # what was under way before is not to blame
            text = f"{what} {rested_ms} ms after failure {sickness.count} in a row"
            raise self.fail(rules.SICK, text)
        self._begun(place, facts, claimed, CLAIMED_AFTER_PAUSE_MS, what)
        plan = self.plans.get(process.member)
        is_new = self.is_peace and facts.submitted_ms.get(claimed.id, 0) > self._peace_ms
        if plan is not None and plan.queues and is_new:
            queue = SMALL_QUEUE if self._is_small(place, claimed) else "default"
            if queue not in plan.queues:
                raise self.fail(rules.QUEUES, f"{what}, but serves {plan.queues}")

    def _begun(
        self, place: Place, facts: _Facts, compaction: ShelfCompaction, grace_ms: int, what: str
    ) -> None:
        if self.paused_ms is None or not self._is_small(place, compaction):
            return
        if facts.submitted_ms[compaction.id] <= self._peace_ms + ADMITTED_AFTER_PAUSE_MS:
            return  # it was admitted elsewhere, if the small queue was drained then, or not there, and stays
        late_ms = self._world.now_ms - self.paused_ms
        if late_ms > grace_ms:
            text = f"{what} {late_ms / 1000:.0f} s after its queue was paused"
            raise self.fail(rules.PAUSED, text)

    def _is_small(self, place: Place, compaction: ShelfCompaction) -> bool:
        return len(compaction.spec) * place.plan.source_bytes < SMALL_QUEUE_BYTES

    # Who leads

    def _wrote_lease(self, process: Process | None, place: Place, facts: _Facts) -> None:
        found = ObjectLease(self._world.objects, place.truth.own_folder, SystemClock()).read()
        before, facts.lease = facts.lease, None if found is None else found.lease
        if before is None or facts.lease is None or before.holder == facts.lease.holder:
            return
        if not self.is_peace or before.is_ended or not self._leads(before.holder, place):
            return
        raise self.fail(rules.PEACE, f"{facts.lease.holder} takes {place.plan.name} from {before.holder}")

    def _leads(self, name: str, place: Place) -> bool:
        """Whether this coordinator is alive, awake and leads it."""
        coordinator, process = self.coordinators.get(name), self.processes.get(name)
        if coordinator is None or process is None or process.is_dead:
            return False
        watched = coordinator.watched.get(place.url)
        return watched is not None and watched.is_led and process.frozen_until_ms == 0

    def check_failover(self) -> None:
        """`FAILOVER_MS` after a coordinator was killed, in peace."""
        for name, facts in self._facts.items():
            holder = None if facts.lease is None else facts.lease.holder
            process = self.processes.get(holder or "")
            is_healthy = self._world.places[name].plan.is_healthy
            if is_healthy and facts.ledger.active() and (process is None or process.is_dead):
                text = (
                    f"{name} has work, and is {holder}'s {FAILOVER_MS / 1000:.0f} s after a coordinator died"
                )
                raise self.fail(rules.FAILOVER, text)

    def check_owner(self, name: str, url: str) -> None:
        """A coordinator admits work of this dataset."""
        if self._is_settled_since(self._world.now_ms):
            for other, coordinator in self.coordinators.items():
                if other != name and not self.processes[other].is_dead and url in coordinator.watched:
                    raise self.fail(rules.OWNER, f"{name} admits work of {url}, which {other} watches")

    def unsettled(self, duration_ms: int) -> None:
        """Members come and go, in peace: all know of it after so long."""
        self._settled_ms = self._world.now_ms + duration_ms

    def _is_settled_since(self, at_ms: int) -> bool:
        return self._settled_ms is not None and self._settled_ms <= at_ms

    def looked(self, process: Process, place: Place) -> None:
        """A dataset was read."""
        facts = self._facts[place.plan.name]
        if process.kind != "coordinator" or facts.unseen is None:
            return
        (born_ms, silence_ms), facts.unseen = facts.unseen, None
        silence_ms += 2 * self._world.scenario.faults.skew_ms  # by whose clock it was read before
        allowed_ms = min(max(silence_ms // 10, 5_000), 300_000) + SEEN_SLACK_MS
        late_ms = self._world.now_ms - born_ms
        if place.plan.is_healthy and self._is_settled_since(born_ms) and late_ms > allowed_ms:
            text = f"{place.plan.name} is read {late_ms} ms after a change, after {silence_ms} ms of silence"
            raise self.fail(rules.SEEN, text)

    # Who works

    def _is_sick(self, member: str) -> bool:
        return member in self.plans and self.plans[member].is_sick

    def reserved(self, member: str, queue_id: str) -> int | None:
        """How many slots of a worker are reserved, by name; `None` while members come and go."""
        queue = self._world.files.catalog.read().catalog.with_id(queue_id)
        if queue is None or not self._is_settled_since(self._world.now_ms):
            return None
        serving = {
            name: plan.slots
            for name, plan in self.plans.items()
            if not self.processes[name].is_dead and (not plan.queues or queue.name in plan.queues)
        }
        owners = [name for name, slots in sorted(serving.items()) for _ in range(slots)]
        return owners[: min(queue.reserved_slots, len(owners) - 1)].count(member)

    def may_lose(self, plan: WorkerPlan, url: str) -> bool:
        """Whether only another claim is in the way of a worker that tries to claim work of this dataset."""
        is_healthy = self._world.by_url[url].plan.is_healthy and url not in self._anew
        return is_healthy and not plan.is_sick and self._is_settled_since(self._world.now_ms)

    def ticked(self, worker: FleetWorker) -> None:
        """A worker has done a round."""
        plan, now_ms = self.plans[worker.name], self._world.now_ms
        may_claim = (
            self._settled_ms is not None
            and now_ms > self._settled_ms
            and self.paused_ms is None
            and not (plan.queues or plan.is_sick or self._world.scenario.reserved_slots)
            and worker._pool.held < plan.slots
        )
        free = self._free() if may_claim else {}
        for key in [key for key in self._idle_ms if key[0] == worker.name and key[1] not in free]:
            del self._idle_ms[key]
        for compaction, name in free.items():
            since_ms = self._idle_ms.setdefault((worker.name, compaction), now_ms)
            if now_ms - since_ms > IDLE_MS:
                text = (
                    f"{worker.name} has free slots for {now_ms - since_ms} ms beside {compaction} of {name}"
                )
                raise self.fail(rules.WORK, text)

    def _free(self) -> dict[str, str]:
        """Compactions that may be claimed, and whose they are: of what is healthy, and begun in peace."""
        return {
            str(compaction.id): name
            for name, facts in self._facts.items()
            if self._world.places[name].plan.is_healthy and self._world.places[name].url not in self._anew
            for compaction in facts.ledger.compactions
            if compaction.state is CompactionState.SCHEDULED
            and facts.submitted_ms.get(compaction.id, 0) > self._peace_ms
        }

    # Whose fault it is

    def counted(self, process: Process, url: str, attempts: Sequence[Attempt], counted: int) -> None:
        """A coordinator was shown attempts at a compaction, and counts so many of them."""
        coordinator = self.coordinators.get(process.member)
        if coordinator is None:
            return
        tick, peers = self.ticks[process.member], coordinator._peers
        excusable = 0
        for attempt in attempts:
            plan = self.plans.get(attempt.worker)
            if plan is None or not plan.is_sick:
                continue
            shown = self._shown[process.member, attempt.worker]
            if sum(first < tick for first in shown.values()) >= SUSPECT_DATASETS:
                excusable += 1
            if url not in self._anew:  # a coordinator forgets what it was shown, once it notices
                shown.setdefault(url, tick)
        others = [name for name in peers.workers if name in self.plans and not self.plans[name].is_sick]
        is_there_another = any(not peers.faults.is_suspect(name) for name in others)
        if excusable:
            self._world.count("event: a sick worker is known")
        if is_there_another and counted > len(attempts) - excusable:
            raise self.fail(
                rules.BLAME, f"{process.name} counts {counted} of {len(attempts)} attempts at a part of {url}"
            )

    def failed(self, process: Process, place: Place) -> None:
        """A look at what is damaged fails."""
        facts, now_ms = self._facts[place.plan.name], self._world.now_ms
        if process.kind != "coordinator" or not place.plan.is_damaged:
            return
        last_ms = facts.failed_ms.get(process.member)
        facts.failed_ms[process.member] = now_ms
        least_ms = QUARANTINE_PAUSE.first_ms - 1_000  # by the time at which the look before began
        # Before, its rule may have changed, or it may have been another coordinator's meanwhile.
        if self.is_peace and last_ms is not None and now_ms - last_ms < least_ms:
            text = f"{process.name} looks at {place.plan.name} again after {now_ms - last_ms} ms"
            raise self.fail(rules.PAUSES, text)

    # The catalog

    def _wrote_of_fleet(self, part: str, data: bytes) -> None:
        folder, _, name = part.partition("/")
        if folder == "members":
            self._said.setdefault(name.removesuffix(".json"), []).append(self._world.now_ms)
        elif folder == "catalog-history" and name.startswith("watermark/"):
            self._thresholds.append((self._world.now_ms, decode_threshold(data, part).position))
        elif part == "catalog.boundary":
            self._world.count("event: catalogs cut off")
            self._check_needed(int(data))

    def _check_needed(self, number: int) -> None:
        """This version and those before are about to go."""
        published_ms = next((ms for ms, position in self._thresholds if position > number), None)
        if published_ms is None:
            raise self.fail(rules.NEEDED, f"catalog {number} goes, and no threshold was published")
        for name, written in self._said.items():
            process = self.processes.get(name)
            if process is None or process.is_dead or written[0] > published_ms:
                continue
            told_ms = max(ms for ms in written if ms <= published_ms)
            needed = self._needed(name, told_ms)
            if needed is not None and needed <= number:
                raise self.fail(rules.NEEDED, f"catalog {number} goes, but {name} needs {needed}")

    def _needed(self, name: str, told_ms: int) -> int | None:
        """The oldest version that this one works with, of what it has told of."""
        if name in self.coordinators:
            return self.coordinators[name].needs
        if name in self.workers:
            worker = self.workers[name]
            claimed = worker._claimed.values()
            told = [one.catalog for one in claimed if one.since_ms + EPOCH_MS <= told_ms]
            return min((worker._catalog.now.number, *told))
        return None

    # What is left

    def begin_peace(self) -> None:
        """From now on rules hold to the second."""
        self.is_peace, self._peace_ms = True, self._world.now_ms
        self.unsettled(0)

    _peace_ms = 0

    def what_is_left(self, *, with_hot: bool) -> str | None:
        """Of what can be done."""
        for name, place in self._world.places.items():
            plan = place.plan
            is_able = plan.is_healthy or (plan.is_foreign and self.is_taken)
            if not is_able or plan.is_idle or (plan.is_hot and not with_hot):
                continue
            if active := self._facts[name].ledger.active():
                return f"{name} has {active[0].id}, which is {active[0].state.name}"
            if wanting := place.wanting:
                return f"{name} has enough in {', '.join(wanting)}"
        return None

    def collected(self, url: str) -> None:
        """A dataset is cared for."""
        self._collected_ms[url] = self._world.now_ms

    def check_cared(self) -> None:
        """Every dataset was cared for lately."""
        since_ms = self._world.now_ms - COLLECT_EVERY_MS - COLLECT_FIRST_MS
        for place in self._world.places.values():
            if place.plan.is_healthy and self._collected_ms.get(place.url, 0) < since_ms:
                last_ms = self._collected_ms.get(place.url)
                raise self.fail(rules.CARED, f"{place.plan.name} was last cared for at {last_ms} ms")

    def check_told(self) -> None:
        """Datasets whose owner is gone are reported, and no others."""
        alive = [seen.says for seen in self._world.files.members.listed() if seen.is_alive]
        told = {one.url for says in alive if says is not None for one in says.overdue if one.elsewhere}
        wanted = {place.url for place in self._world.places.values() if place.plan.is_foreign}
        if told != wanted:
            raise self.fail(rules.TOLD, f"{sorted(told)} are reported as elsewhere, not {sorted(wanted)}")

    def check_anew(self) -> None:
        """What was written to another dataset was taken back."""
        left = sorted(filter(_is_version, self._strays))
        if left:
            raise self.fail(rules.ANEW, f"{left[0]} stays, and is of the dataset that was there before")

    def check_end(self) -> None:
        """Everything is at rest."""
        for name, facts in self._facts.items():
            place, holder = self._world.places[name], facts.lease.holder if facts.lease else ""
            if place.plan.is_healthy and self._leads(holder, place):
                raise self.fail(rules.LEFT, f"{name} is still {holder}'s")
        healthy = {place.url for place in self._world.places.values() if place.plan.is_healthy}
        files = self._world.files
        for queue in files.catalog.read().catalog.queues:
            hints = [hint.url for hint in files.boards.read(queue.id) if hint.url in healthy]
            if hints:
                raise self.fail(rules.LEFT, f"there is still a hint of {hints[0]}")

    def check_catalogs(self) -> None:
        """Nobody needs an old one any more."""
        numbers = self._world.files.catalog.versions.ids()
        alive = [name for name, process in self.processes.items() if not process.is_dead]
        needed = [self._needed(name, self._world.now_ms) for name in alive]  # for what always fails
        least = min((n for n in needed if n is not None), default=numbers[-1])
        if numbers[0] < least:
            raise self.fail(rules.GONE, f"catalogs {numbers} are left, and nobody needs one below {least}")


def _is_version(key: str) -> bool:
    """Whether this is a version of an index or a ledger."""
    return key.split("/")[2] == "index" or key.split("/")[2:4] == ["_lithify", "ledger"]


def _number(key: str) -> int:
    return int(key.rpartition("/")[2].partition(".")[0])
