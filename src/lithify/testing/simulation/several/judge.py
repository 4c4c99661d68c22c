"""The judge: sees every ledger, note, look and claim, and knows what must hold (`rules`).

1. *Facts* are taken from what is written to the stores, by a judge for whom nothing goes wrong: since when a
   compaction is free, whose it is, how often it failed and when, what failed for good.
2. What may be claimed, and when, follows from the facts and the pauses that are documented. Here it is worked
   out anew, and only what has been so since before the pool's last look counts. So a pool that is judged to
   pass something over could have claimed it.
3. Where the judge cannot know the very numbers that a pool reckons with, it takes those that speak for the
   pool: the lowest priority and age of what waits, the highest of what is claimed, since the last look.
4. Every second it looks whether something has waited for too long (`look`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from lithify import events
from lithify.backoff import GrowingPause
from lithify.compaction.model import State
from lithify.compaction.transitions import AnyCompaction, AnyLedger
from lithify.errors import LithifyError
from lithify.planning.turns import AGEING_TURNS
from lithify.testing.simulation.several import rules
from lithify.testing.simulation.several.places import DAMAGED, Place
from lithify.testing.simulation.several.scenario import HEARTBEAT_INTERVAL_MS, ROUND_MS
from lithify.testing.simulation.several.world import World

LOOK_MS = 1_000
ALLOWED_MS = ROUND_MS + 2_000
"""So long something may be as it should not: until the next look, and some calls of the store."""
PLANNED_MS = 3 * ROUND_MS
"""A coordinator looks three times: it commits, sees an empty queue, and plans."""
QUARANTINE_PAUSE = GrowingPause(1_000, 300_000)
FAILURE_PAUSE = GrowingPause(60_000, 3_600_000)
CANCEL_MS = 60_000
_EPSILON = 1e-6


class _Engine(Protocol):
    @property
    def failure(self) -> LithifyError | None: ...

    @property
    def running(self) -> frozenset[str]: ...

    @property
    def ended_ms(self) -> int | None: ...


@dataclass(slots=True)
class _Candidate:
    """A free compaction as a pool has seen it."""

    first_seen_ms: int
    passed_over: int = 0
    """Claims of others while it could have been claimed, for certain."""
    rivals: int = 1
    """The most that were free beside it, itself included."""
    lowest: float = 1.0
    highest: float = 0.0
    """Its priority since the last look."""
    tries: int = 0
    """Attempts that count, at the last look."""


@dataclass(slots=True)
class _Looks:
    """What a pool knows of a dataset."""

    at_ms: int = 0
    is_well: bool = False
    """The last look has not failed, nor what came after it."""
    well_at_ms: int = 0
    well_since_ms: int = 0
    """The first of the good looks that followed each other until now."""
    failed: int = 0
    """Looks in a row."""
    failed_at_ms: int = 0
    passed_over: int = 0
    """Claims of other datasets while this one could have claimed, for certain."""
    claims: int = 0
    """Claims of this dataset."""
    claims_at_look: int = 0
    """How many there were at the last look."""
    last_claim: int = 0
    """The number of the pool's claim that was the last of this dataset."""
    candidates: dict[str, _Candidate] = field(default_factory=dict)
    gone: float = 0.0
    """How urgent that was which others have taken since the last look. The pool may not know."""
    ages: dict[str, int] = field(default_factory=dict)
    """Of what it may have seen free since it claimed that last: how many claims there were before."""
    failures: int = 0
    """Attempts in a row that came to nothing."""
    last_failure_ms: tuple[int, int] = (0, 0)
    """When the last one was: not before, and not after."""
    rest_over_ms: int = 0
    """When its last rest was over, as of the last success; a success ends it."""


@dataclass(slots=True, eq=False)
class Pool:
    """A process with a pool, as it is judged."""

    name: str
    slots: int
    started_ms: int
    engine: _Engine | None = None
    claims: int = 0
    full_at_ms: int = 0
    """When all slots were last in use."""
    places: dict[str, _Looks] = field(default_factory=dict)
    failures: int = 0
    """Attempts in a row that came to nothing, of whatever dataset."""
    last_failure_ms: tuple[int, int] = (0, 0)
    failing: set[str] = field(default_factory=set)
    """Datasets of these attempts."""

    def of(self, place: str) -> _Looks:
        return self.places.setdefault(place, _Looks())

    def rests(self, place: str, pause: GrowingPause) -> tuple[int, int]:
        """Until when it rests where this dataset is concerned: not longer than, and as long as."""
        looks = self.of(place)
        own = pause.after_ms(looks.failures)
        first, last = looks.last_failure_ms[0] + own, looks.last_failure_ms[1] + own
        if len(self.failing) > 1:
            together = pause.after_ms(self.failures)
            first = max(first, self.last_failure_ms[0] + together)
            last = max(last, self.last_failure_ms[1] + together)
        return first, last


@dataclass(slots=True)
class _Claim:
    """Who has claimed a compaction last."""

    worker: str
    waited_ms: int = 0
    """How long it had been free."""
    noted: set[tuple[Any, ...]] = field(default_factory=set)
    is_down: bool = False
    """Its tasks ended with their engine."""


@dataclass(frozen=True, slots=True)
class _Failure:
    compaction: str
    sources: frozenset[str]
    at_ms: int
    is_cancelled: bool


@dataclass(slots=True)
class _Facts:
    """What is known of a dataset."""

    ledger: AnyLedger | None = None
    free_since_ms: dict[str, int] = field(default_factory=dict)
    claims: dict[str, _Claim] = field(default_factory=dict)
    attempts: dict[str, dict[tuple[Any, ...], tuple[int, int]]] = field(default_factory=dict)
    """Each once: when it was, and how many ranges were on record then."""
    failures: dict[str, _Failure] = field(default_factory=dict)
    plannable_since_ms: dict[str, int] = field(default_factory=dict)
    waited_ms: dict[str, int] = field(default_factory=dict)
    """Of units with work, the time that counts."""
    last_sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def tries(self, compaction: str) -> tuple[int, int]:
        """How many attempts count, and when the last was. Those before one that has brought it on do not."""
        most = count = last_ms = 0
        for at_ms, recorded in sorted(self.attempts.get(compaction, {}).values()):
            most, count, last_ms = (recorded, 0, at_ms) if recorded > most else (most, count + 1, at_ms)
        return count, last_ms


class Judge:
    """Watches; raises `Violation`."""

    def __init__(self, world: World, places: Mapping[str, Place]) -> None:
        self._world = world
        self._places = places
        self._facts = {name: _Facts() for name in places}
        self._retry_pause = world.scenario.retry_pause
        self._spare_ms = world.scenario.worker.spare_claim_delay_ms
        self._claimed_ms = ALLOWED_MS + (self._spare_ms + ROUND_MS if self._spare_ms else 0)
        """So long a slot may idle: what is spare is seen, left to others for a while, and seen once more."""
        self.pools: dict[str, Pool] = {}

    # What is written

    def wrote(self, who: str, place: str, key: str, data: bytes) -> None:
        if self._places[place].is_ledger(key):
            if data != DAMAGED:
                self._wrote_ledger(who, place, self._places[place].decode_ledger(data, key))
        elif "/attempts/" in key:
            self._wrote_attempt(who, place, key.split("/")[-2], json.loads(data))
        elif "/failures/" in key:
            self._wrote_failure(place, json.loads(data))
        elif self._places[place].is_manifest(key):
            self.changed(place)

    def changed(self, place: str) -> None:
        """Priorities may be others now."""
        for pool in self.pools.values():
            for name, candidate in pool.of(place).candidates.items():
                self._reckon(place, name, candidate)

    def _wrote_ledger(self, who: str, place: str, new: AnyLedger) -> None:
        facts, now_ms = self._facts[place], self._world.now_ms
        old, facts.ledger = facts.ledger, new
        free = {c.id for c in new.compactions if c.state is State.SCHEDULED and c.worker is None}
        for compaction in new.compactions:
            was = old.get(compaction.id) if old is not None else None
            if was is None or was.state is not compaction.state:
                self._world.count(f"step: {compaction.state.value} by {_part(who)}")
            is_new_owner = was is None or was.worker is None or was.state is not State.RUNNING
            if compaction.state is State.RUNNING and compaction.worker is not None and is_new_owner:
                self._claimed(compaction.worker.id, place, compaction.id)
        facts.free_since_ms = {i: facts.free_since_ms.get(i, now_ms) for i in sorted(free)}
        for pool in self.pools.values():  # what is free again later may not be what a pool has seen
            looks = pool.of(place)
            gone = [c for i, c in looks.candidates.items() if i not in free]
            looks.gone = max([looks.gone, *(c.highest - c.tries for c in gone)])
            looks.candidates = {i: c for i, c in looks.candidates.items() if i in free}
        self._follow_plans(place)

    def _wrote_attempt(self, who: str, place: str, compaction: str, note: dict[str, Any]) -> None:
        facts = self._facts[place]
        attempt = (note["worker"], note["reason"], note["at_ms"], note["recorded"])
        before_ms = facts.tries(compaction)[1]
        facts.attempts.setdefault(compaction, {})[attempt] = note["at_ms"], note["recorded"]
        claim, pool = facts.claims.get(compaction), self.pools.get(who)
        if pool is not None and claim is not None and claim.worker == who:
            claim.noted.add(attempt)
            if len(claim.noted) > 1:
                self._fail(rules.ONCE, f"{who} notes one failure of {compaction} of {place} again: {note}")
            ended_ms = pool.engine.ended_ms if pool.engine is not None else None
            if claim.is_down or (ended_ms is not None and note["at_ms"] > ended_ms):
                self._fail(rules.ENGINE, f"{who} notes an attempt at {compaction} of {place}: {note}")
        # The coordinator can only give up what it has seen free.
        has_looked = (
            claim is not None and claim.waited_ms > ROUND_MS and self._is_well_since(place, before_ms)
        )
        if facts.tries(compaction)[0] > self._world.scenario.max_attempts and has_looked:
            self._fail(rules.GIVEN_UP, f"{compaction} of {place} is tried once more: {note}")

    def _wrote_failure(self, place: str, note: dict[str, Any]) -> None:
        if not note["attempts"] and not note["is_cancelled"]:
            return  # it was refused, which holds nothing back
        truth = self._places[place].truth
        sources = truth.sources(truth.decode_spec(note["spec"]))
        self._world.count("event: failure noted" if not note["is_cancelled"] else "event: cancellation noted")
        compaction = note["compaction"]
        self._facts[place].failures[compaction] = _Failure(
            compaction, sources, note["at_ms"], note["is_cancelled"]
        )

    def forgive(self, place: str) -> list[str]:
        """Forget the failures of healthy units; which these were."""
        facts, truth = self._facts[place], self._places[place]
        units = facts.sources
        poisoned = frozenset(s for unit in truth.poisoned for s in units.get(unit, ()))
        healthy = [i for i, failure in facts.failures.items() if failure.sources.isdisjoint(poisoned)]
        for compaction in healthy:
            del facts.failures[compaction]
        return healthy

    # Looks and claims

    def looks(self, pool: Pool, place: str) -> None:
        """A pool begins to look at a dataset."""
        looks, facts, now_ms = pool.of(place), self._facts[place], self._world.now_ms
        if not looks.is_well:
            looks.candidates = {}  # a look that failed has shown nothing
        if looks.is_well:
            looks.failed = 0
        elif looks.failed:
            pause_ms = min(QUARANTINE_PAUSE.after_ms(looks.failed), HEARTBEAT_INTERVAL_MS)
            if now_ms < looks.failed_at_ms + pause_ms:
                since_ms = now_ms - looks.failed_at_ms
                text = f"{pool.name} looks at {place} {since_ms} ms after its failed look {looks.failed}"
                self._fail(rules.PAUSES, text)
        looks.at_ms, looks.is_well, looks.gone = now_ms, False, 0.0
        claims_before, looks.claims_at_look = looks.claims_at_look, looks.claims
        for compaction in facts.free_since_ms:
            looks.ages.setdefault(compaction, claims_before)
            candidate = looks.candidates.setdefault(compaction, _Candidate(now_ms))
            candidate.lowest, candidate.highest = 1.0, 0.0
            candidate.tries = facts.tries(compaction)[0]
            self._reckon(place, compaction, candidate)

    def looked(self, pool: Pool, place: str) -> None:
        """The look has ended well."""
        looks = pool.of(place)
        if looks.failed:
            self._world.count("event: dataset looked at again")
        if looks.failed or not looks.well_at_ms:
            looks.well_since_ms = self._world.now_ms
        looks.is_well, looks.well_at_ms = True, self._world.now_ms

    def look_failed(self, pool: Pool, place: str) -> None:
        """The look, or what came after it, has ended with an error."""
        looks = pool.of(place)
        looks.is_well, looks.failed, looks.failed_at_ms = False, looks.failed + 1, self._world.now_ms

    def told(self, pool: Pool, place: str, event: events.Event) -> None:
        """A worker of a pool tells of something."""
        looks, now_ms = pool.of(place), self._world.now_ms
        if isinstance(event, events.AttemptFailed):
            first_ms = self._facts[place].tries(event.compaction)[1]
            looks.failures += 1
            pool.failures += 1
            looks.last_failure_ms = pool.last_failure_ms = (first_ms, now_ms)
            pool.failing.add(place)
            if len(pool.failing) > 1:
                self._world.count("event: several datasets fail")
        elif isinstance(event, events.Compacted):
            for name, other in pool.places.items():
                over_ms = min(now_ms, pool.rests(name, self._retry_pause)[1])
                other.rest_over_ms = max(other.rest_over_ms, over_ms)
            looks.failures = pool.failures = 0
            pool.failing.clear()

    def went_down(self, pool: Pool, compactions: frozenset[str]) -> None:
        """The engine of a pool is gone, and with it the tasks of these."""
        for facts in self._facts.values():
            for compaction in compactions & facts.claims.keys():
                facts.claims[compaction].is_down = True

    def calls_changed(self, pool: Pool) -> None:
        """A task of a pool has started or ended."""
        if pool.engine is not None and len(pool.engine.running) >= pool.slots:
            pool.full_at_ms = self._world.now_ms

    def _claimed(self, worker: str, place: str, compaction: str) -> None:
        facts = self._facts[place]
        now_ms = self._world.now_ms
        facts.claims[compaction] = _Claim(worker, now_ms - facts.free_since_ms.get(compaction, now_ms))
        pool = self.pools.get(worker)
        if pool is None:
            return
        self._check_pauses(pool, place, compaction)
        self._check_turns_of_datasets(pool, place)
        self._check_turns_of_compactions(pool, place, compaction)
        looks = pool.of(place)
        pool.claims += 1
        looks.claims += 1
        looks.last_claim, looks.passed_over = pool.claims, 0
        looks.candidates.pop(compaction, None)
        looks.ages.pop(compaction, None)

    def _check_pauses(self, pool: Pool, place: str, compaction: str) -> None:
        now_ms = self._world.now_ms
        tries, last_ms = self._facts[place].tries(compaction)
        if now_ms < last_ms + self._retry_pause.after_ms(tries):
            self._fail(
                rules.PAUSES,
                f"{pool.name} claims {compaction} of {place} {now_ms - last_ms} ms after attempt {tries}",
            )
        if now_ms < pool.rests(place, self._retry_pause)[0]:
            self._fail(rules.PAUSES, f"{pool.name} claims of {place} while it rests")

    def _check_turns_of_datasets(self, pool: Pool, claiming: str) -> None:
        highest = self._highest_offer(pool, claiming)
        for place in self._places:
            looks = pool.of(place)
            eligible = list(self._eligible(pool, place)) if place != claiming else []
            if not eligible:
                continue
            lowest = max(0.0, *(looks.candidates[i].lowest - self._tries(place, i) for i in eligible))
            if highest is not None and lowest + looks.passed_over / AGEING_TURNS > highest + _EPSILON:
                self._fail(
                    rules.URGENT,
                    f"{pool.name} claims of {claiming}, at most {highest:.3f} urgent, and {place} is "
                    f"{lowest:.3f} urgent and was passed over {looks.passed_over} times",
                )
            looks.passed_over += 1
            if looks.passed_over > AGEING_TURNS + len(self._places) - 1:
                self._fail(rules.TURNS, f"{pool.name} has passed over {place} {looks.passed_over} times")

    def _highest_offer(self, pool: Pool, place: str) -> float | None:
        """How urgent a dataset may be to a pool at most; `None` when it has something that it had not at the
        last look."""
        looks = pool.of(place)
        if not self._facts[place].free_since_ms.keys() <= looks.candidates.keys():
            return None
        own = (c.highest - c.tries for c in looks.candidates.values())
        return max(0.0, looks.gone, *own) + (pool.claims - looks.last_claim) / AGEING_TURNS

    def _check_turns_of_compactions(self, pool: Pool, place: str, compaction: str) -> None:
        looks = pool.of(place)
        claimed = looks.candidates.get(compaction)
        for other in list(self._eligible(pool, place)):
            candidate = looks.candidates[other]
            if other == compaction:
                continue
            tries = self._tries(place, other)
            if claimed is not None:
                lowest = candidate.lowest - tries + candidate.passed_over / AGEING_TURNS
                age = looks.claims - looks.ages[compaction]
                highest = claimed.highest - claimed.tries + age / AGEING_TURNS
                if lowest > highest + _EPSILON:
                    self._fail(
                        rules.URGENT,
                        f"{pool.name} claims {compaction} of {place}, at most {highest:.3f} urgent, before "
                        f"{other}, which is {lowest:.3f} urgent",
                    )
            candidate.passed_over += 1
            candidate.rivals = max(candidate.rivals, len(self._facts[place].free_since_ms))
            if candidate.passed_over > AGEING_TURNS * (1 + tries) + candidate.rivals - 1:
                self._fail(
                    rules.TURNS,
                    f"{pool.name} has passed over {other} of {place} {candidate.passed_over} times",
                )

    def _eligible(self, pool: Pool, place: str) -> Iterator[str]:
        """What a pool could have claimed of a dataset, for certain, since its last look."""
        looks, facts = pool.of(place), self._facts[place]
        if not looks.is_well or self._world.now_ms < pool.rests(place, self._retry_pause)[1]:
            return
        if pool.rests(place, self._retry_pause)[1] > looks.at_ms:
            return
        for compaction, candidate in looks.candidates.items():
            tries, last_ms = facts.tries(compaction)
            free_ms = max(
                last_ms + self._retry_pause.after_ms(tries), candidate.first_seen_ms + self._spare_ms
            )
            if compaction in facts.free_since_ms and free_ms <= looks.at_ms:
                yield compaction

    def _tries(self, place: str, compaction: str) -> int:
        return self._facts[place].tries(compaction)[0]

    def _reckon(self, place: str, compaction: str, candidate: _Candidate) -> None:
        entry = self._entry(place, compaction)
        if entry is not None:
            priority = self._places[place].priority(entry)
            candidate.lowest = min(candidate.lowest, priority)
            candidate.highest = max(candidate.highest, priority)

    def _entry(self, place: str, compaction: str) -> AnyCompaction | None:
        ledger = self._facts[place].ledger
        return (
            next((c for c in ledger.compactions if c.id == compaction), None) if ledger is not None else None
        )

    # What takes too long

    def look(self) -> None:
        """Once every `LOOK_MS`."""
        for name, place in self._places.items():
            self._facts[name].sources = place.sources()
            self._follow_plans(name)
            self._check_commits(name)
            self._check_given_up(name)
        for pool in self.pools.values():
            self.calls_changed(pool)
            if pool.engine is None or pool.engine.failure is not None:
                continue
            for name in self._places:
                self._check_return(pool, name)
                self._check_idle(pool, name)

    @property
    def is_done(self) -> bool:
        """Whether nothing healthy is left to be done."""
        return self.what_is_left() is None

    def what_is_left(self) -> str | None:
        """Something healthy that is not done."""
        for name, place in self._places.items():
            facts = self._facts[name]
            for compaction in facts.ledger.active() if facts.ledger is not None else ():
                unit = place.truth.unit(compaction.spec)
                if unit not in place.poisoned:
                    return f"{unit} of {name} is {compaction.state.value}"
            for unit in place.sources():
                if unit not in place.poisoned:
                    return f"{unit} of {name} waits"
        return None

    def _follow_plans(self, name: str) -> None:
        place, facts, now_ms = self._places[name], self._facts[name], self._world.now_ms
        ledger = facts.ledger
        if ledger is None or place.trouble is not None or not place.has_planner_slot(ledger):
            facts.plannable_since_ms.clear()
            return
        since = facts.plannable_since_ms
        ready = {
            u for u, s in facts.sources.items() if place.may_plan(u, ledger) and not self._held_ms(name, s)
        }
        facts.plannable_since_ms = {unit: since.get(unit, now_ms) for unit in sorted(ready)}
        for unit, since_ms in facts.plannable_since_ms.items():
            if now_ms - max(since_ms, place.well_since_ms) > PLANNED_MS:
                active = len(ledger.active())
                self._fail(
                    rules.PLANNED,
                    f"{unit} of {name} has work for {(now_ms - since_ms) / 1000:.0f} s and is not planned, "
                    f"with {active} of {place.plan.planner_slots} active",
                )

    def _held_ms(self, place: str, sources: frozenset[str]) -> int:
        """How much longer these are left alone, at most, because of what failed."""
        facts, now_ms = self._facts[place], self._world.now_ms
        active = {c.id for c in facts.ledger.active()} if facts.ledger is not None else set()
        alike = [f for f in facts.failures.values() if f.compaction not in active and f.sources & sources]
        ends = [f.at_ms + CANCEL_MS for f in alike if f.is_cancelled]
        failed = [f.at_ms for f in alike if not f.is_cancelled]
        ends += [at_ms + FAILURE_PAUSE.after_ms(len(failed)) for at_ms in failed]
        return max(0, max(ends, default=0) - now_ms)

    def _check_commits(self, name: str) -> None:
        place, facts = self._places[name], self._facts[name]
        is_stopped = place.trouble is not None or not self.pools
        is_stopped = is_stopped or any(
            p.of(name).failed and not p.of(name).is_well for p in self.pools.values()
        )
        patience_ms = self._world.scenario.patience_ms(place.plan)
        before, facts.waited_ms = facts.waited_ms, {}
        for unit, sources in facts.sources.items():
            if unit in place.poisoned:
                continue
            is_new = not facts.last_sources.get(unit, frozenset()) <= sources  # else nothing was committed
            waited_ms = 0 if is_new else before.get(unit, 0)
            if not is_stopped and not self._held_ms(name, sources):
                waited_ms += LOOK_MS
            facts.waited_ms[unit] = waited_ms
            if waited_ms > patience_ms:
                self._fail(rules.COMMITTED, f"{unit} of {name} waits for {waited_ms / 1000:.0f} s")
        facts.last_sources = facts.sources

    def _check_given_up(self, name: str) -> None:
        facts = self._facts[name]
        for compaction, since_ms in facts.free_since_ms.items():
            tries = self._tries(name, compaction)
            is_due = tries >= self._world.scenario.max_attempts
            if (
                is_due
                and self._is_well_since(name, since_ms)
                and self._world.now_ms - since_ms > 2 * ALLOWED_MS
            ):
                self._fail(rules.GIVEN_UP, f"{compaction} of {name} has failed {tries} times and goes on")

    def _check_return(self, pool: Pool, name: str) -> None:
        place, looks, now_ms = self._places[name], pool.of(name), self._world.now_ms
        if place.trouble is not None or looks.is_well:
            return
        pause_ms = QUARANTINE_PAUSE.after_ms(looks.failed)
        due_ms = max(place.well_since_ms, pool.started_ms, looks.failed_at_ms + pause_ms) + ALLOWED_MS
        if now_ms > due_ms and looks.well_at_ms < now_ms - ALLOWED_MS:
            since_s = (now_ms - place.well_since_ms) / 1000
            self._fail(rules.RETURNS, f"{pool.name} leaves {name} alone, which is well for {since_s:.0f} s")

    def _check_idle(self, pool: Pool, name: str) -> None:
        place, looks, facts, now_ms = self._places[name], pool.of(name), self._facts[name], self._world.now_ms
        if place.trouble is not None:
            return
        pause_ms = QUARANTINE_PAUSE.after_ms(looks.failed) if looks.failed else 0
        ready_ms = max(
            pool.started_ms,
            pool.full_at_ms,
            place.well_since_ms,
            looks.failed_at_ms + pause_ms,
            looks.well_since_ms,
            looks.rest_over_ms,
            pool.rests(name, self._retry_pause)[1],
        )
        for compaction, since_ms in facts.free_since_ms.items():
            tries, last_ms = facts.tries(compaction)
            retry_ms = last_ms + self._retry_pause.after_ms(tries)
            if now_ms - max(ready_ms, retry_ms, since_ms) > self._claimed_ms:
                running = len(pool.engine.running) if pool.engine is not None else 0
                self._fail(
                    rules.IDLE,
                    f"{compaction} of {name} is free for {(now_ms - since_ms) / 1000:.0f} s, and {pool.name} "
                    f"runs {running} of {pool.slots}",
                )

    def _is_well_since(self, place: str, at_ms: int) -> bool:
        """Whether nothing is wrong with a dataset, and was not a while before that time."""
        found = self._places[place]
        return found.trouble is None and found.well_since_ms + ALLOWED_MS < at_ms

    def _fail(self, rule: str, text: str) -> NoReturn:
        raise self._world.fail(rule, text)


def _part(who: str) -> str:
    """Whose part somebody plays."""
    return "pool" if who.startswith("pool") else who.partition(" ")[0]
