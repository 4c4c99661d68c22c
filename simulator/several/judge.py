"""The judge: sees every ledger, note, look and claim, and knows what must hold (`rules`).

1. `Facts` are taken from what is written to the stores: since when a compaction is free, whose it is, how
   often it failed and when, what failed for good.
2. What a `Pool` has seen is taken from its looks and from what it tells.
3. Each claim is judged by these (`ClaimRules`), and every second whether something has waited for too long
   (`WaitingRules`). Pauses and priorities are worked out anew, as they are documented.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lithify.base import events
from lithify.protocol.model import CompactionState
from lithify.protocol.transitions import AnyLedger
from simulator.several import rules
from simulator.several.claim_rules import ClaimRules
from simulator.several.facts import Claim, Facts, Failure, Try
from simulator.several.places import DAMAGED, Place
from simulator.several.pools import Candidate, Pool
from simulator.several.scenario import HEARTBEAT_INTERVAL_MS, ROUND_MS
from simulator.several.waiting_rules import ALLOWED_MS, QUARANTINE_PAUSE, WaitingRules
from simulator.several.world import World


class Judge:
    """Watches; raises `Violation`."""

    def __init__(self, world: World, places: Mapping[str, Place]) -> None:
        self._world = world
        self._places = places
        self._facts = {name: Facts() for name in places}
        self._retry_pause = world.scenario.retry_pause
        self._claim_rules = ClaimRules(world, places, self._facts)
        self._waiting_rules = WaitingRules(world, places, self._facts)
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

    def hindered(self, place: str) -> None:
        """Whoever was at work has to come round again."""
        self._facts[place].hindered_ms = self._world.now_ms

    def _wrote_ledger(self, who: str, place: str, new: AnyLedger) -> None:
        facts, now_ms = self._facts[place], self._world.now_ms
        old, facts.ledger = facts.ledger, new
        free = {c.id for c in new.compactions if c.state is CompactionState.SCHEDULED and c.worker is None}
        for compaction in new.compactions:
            was = old.get(compaction.id) if old is not None else None
            if was is None or was.state is not compaction.state:
                self._world.count(f"step: {compaction.state.value} by {_part(who)}")
            is_new_owner = was is None or was.worker is None or was.state is not CompactionState.RUNNING
            if compaction.state is CompactionState.RUNNING and compaction.worker is not None and is_new_owner:
                self._claimed(compaction.worker.id, place, compaction.id)
        facts.free_since_ms = {i: facts.free_since_ms.get(i, now_ms) for i in sorted(free)}
        for pool in self.pools.values():  # what is free again later may not be what a pool has seen
            looks = pool.of(place)
            gone = [c for i, c in looks.candidates.items() if i not in free]
            looks.gone = max([looks.gone, *(c.highest - c.tries for c in gone)])
            looks.candidates = {i: c for i, c in looks.candidates.items() if i in free}
        self._waiting_rules.follow_plans(place)

    def _wrote_attempt(self, who: str, place: str, compaction: str, note: dict[str, Any]) -> None:
        facts = self._facts[place]
        attempt = (note["worker"], note["reason"], note["at_ms"], note["recorded"])
        before_ms = facts.tries(compaction)[1]
        known = facts.attempts.setdefault(compaction, {})
        # Noted again after its answer was lost, it could be seen since the first time.
        noted_ms = known[attempt].noted_ms if attempt in known else self._world.now_ms
        known[attempt] = Try(note["at_ms"], note["recorded"], who, noted_ms)
        claim, pool = facts.claims.get(compaction), self.pools.get(who)
        if pool is not None and claim is not None and claim.worker == who:
            claim.noted.add(attempt)
            if len(claim.noted) > 1:
                raise self._world.fail(
                    rules.ONCE, f"{who} notes one failure of {compaction} of {place} again: {note}"
                )
            ended_ms = pool.engine.ended_ms if pool.engine is not None else None
            if claim.is_down or (ended_ms is not None and note["at_ms"] > ended_ms):
                raise self._world.fail(
                    rules.ENGINE, f"{who} notes an attempt at {compaction} of {place}: {note}"
                )
        # The coordinator can only give up what it has seen free.
        has_looked = (
            claim is not None
            and claim.waited_ms > ROUND_MS
            and self._places[place].is_well_since(before_ms - ALLOWED_MS)
        )
        if facts.tries(compaction)[0] > self._world.scenario.max_attempts and has_looked:
            raise self._world.fail(rules.GIVEN_UP, f"{compaction} of {place} is tried once more: {note}")

    def _wrote_failure(self, place: str, note: dict[str, Any]) -> None:
        if not note["attempts"] and not note["is_cancelled"]:
            return  # it was refused, which holds nothing back
        truth = self._places[place].truth
        sources = truth.identify(truth.decode_spec(note["spec"])).inputs
        self._world.count("event: failure noted" if not note["is_cancelled"] else "event: cancellation noted")
        compaction = note["compaction"]
        self._facts[place].failures[compaction] = Failure(
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
                raise self._world.fail(rules.PAUSES, text)
        looks.at_ms, looks.is_well, looks.gone = now_ms, False, 0.0
        claims_before, looks.claims_at_look = looks.claims_at_look, looks.claims
        for compaction in facts.free_since_ms:
            looks.ages.setdefault(compaction, claims_before)
            candidate = looks.candidates.setdefault(compaction, Candidate(now_ms))
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
        free_since_ms = max(facts.free_since_ms.get(compaction, now_ms), facts.hindered_ms)
        facts.claims[compaction] = Claim(worker, now_ms - free_since_ms)
        pool = self.pools.get(worker)
        if pool is None:
            return
        self._claim_rules.claimed(pool, place, compaction)
        looks = pool.of(place)
        pool.claims += 1
        looks.claims += 1
        looks.last_claim, looks.passed_over = pool.claims, 0
        looks.candidates.pop(compaction, None)
        looks.ages.pop(compaction, None)

    def _reckon(self, place: str, compaction: str, candidate: Candidate) -> None:
        entry = self._facts[place].entry(compaction)
        if entry is not None:
            priority = self._places[place].priority(entry)
            candidate.lowest = min(candidate.lowest, priority)
            candidate.highest = max(candidate.highest, priority)

    # What takes too long

    def look(self) -> None:
        """Once every `LOOK_MS`."""
        for name, place in self._places.items():
            self._facts[name].sources = place.sources()
        for pool in self.pools.values():
            self.calls_changed(pool)
        self._waiting_rules.look(self.pools.values())

    def what_is_left(self) -> str | None:
        """Something healthy that is not done."""
        for name, place in self._places.items():
            facts = self._facts[name]
            for compaction in facts.ledger.active() if facts.ledger is not None else ():
                unit = place.truth.identify(compaction.spec).unit
                if unit not in place.poisoned:
                    return f"{unit} of {name} is {compaction.state.value}"
            for unit in place.sources():
                if unit not in place.poisoned:
                    return f"{unit} of {name} waits"
        return None


def _part(who: str) -> str:
    """Whose part somebody plays."""
    return "pool" if who.startswith("pool") else who.partition(" ")[0]
