"""What takes too long: work that is not planned, a healthy unit that is not committed, what failed too often
and goes on, a dataset that is left alone, a slot that idles."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lithify.base.backoff import GrowingPause
from simulator.several import rules
from simulator.several.facts import Facts
from simulator.several.places import Place
from simulator.several.pools import Pool
from simulator.several.scenario import ROUND_MS
from simulator.several.world import World

LOOK_MS = 1_000
ALLOWED_MS = ROUND_MS + 2_000
"""So long something may be as it should not: until the next look, and some calls of the store."""
QUARANTINE_PAUSE = GrowingPause(1_000, 300_000)
_PLANNED_MS = 3 * ROUND_MS
"""A coordinator looks three times: it commits, sees an empty queue, and plans."""


class WaitingRules:
    """Looks once every `LOOK_MS`."""

    def __init__(self, world: World, places: Mapping[str, Place], facts: Mapping[str, Facts]) -> None:
        self._world = world
        self._places = places
        self._facts = facts
        self._retry_pause = world.scenario.retry_pause
        spare_ms = world.scenario.worker.spare_claim_delay_ms
        self._claimed_ms = ALLOWED_MS + (spare_ms + ROUND_MS if spare_ms else 0)
        """So long a slot may idle: what is spare is seen, left to others for a while, and seen once more."""

    def look(self, pools: Collection[Pool]) -> None:
        for name in self._places:
            self.follow_plans(name)
            self._check_commits(name, pools)
            self._check_given_up(name)
        for pool in pools:
            if pool.engine is None or pool.engine.failure is not None:
                continue
            for name in self._places:
                self._check_return(pool, name)
                self._check_idle(pool, name)

    def follow_plans(self, name: str) -> None:
        """A ledger was written, or a second has gone by."""
        place, facts, now_ms = self._places[name], self._facts[name], self._world.now_ms
        ledger = facts.ledger
        if ledger is None or place.trouble is not None or not place.has_planner_slot(ledger):
            facts.plannable_since_ms.clear()
            return
        since = facts.plannable_since_ms
        ready = {
            u for u, s in facts.sources.items() if place.may_plan(u, ledger) and not facts.held_ms(s, now_ms)
        }
        facts.plannable_since_ms = {unit: since.get(unit, now_ms) for unit in sorted(ready)}
        for unit, since_ms in facts.plannable_since_ms.items():
            if now_ms - max(since_ms, place.well_since_ms) > _PLANNED_MS:
                active = len(ledger.active())
                raise self._world.fail(
                    rules.PLANNED,
                    f"{unit} of {name} has work for {(now_ms - since_ms) / 1000:.0f} s and is not planned, "
                    f"with {active} of {place.plan.planner_slots} active",
                )

    def _check_commits(self, name: str, pools: Collection[Pool]) -> None:
        place, facts, now_ms = self._places[name], self._facts[name], self._world.now_ms
        is_stopped = place.trouble is not None or not pools
        is_stopped = is_stopped or any(p.of(name).failed and not p.of(name).is_well for p in pools)
        patience_ms = self._world.scenario.patience_ms(place.plan)
        before, facts.waited_ms = facts.waited_ms, {}
        for unit, sources in facts.sources.items():
            if unit in place.poisoned:
                continue
            is_new = not facts.last_sources.get(unit, frozenset()) <= sources  # else nothing was committed
            waited_ms = 0 if is_new else before.get(unit, 0)
            if not is_stopped and not facts.held_ms(sources, now_ms):
                waited_ms += LOOK_MS
            facts.waited_ms[unit] = waited_ms
            if waited_ms > patience_ms:
                raise self._world.fail(
                    rules.COMMITTED, f"{unit} of {name} waits for {waited_ms / 1000:.0f} s"
                )
        facts.last_sources = facts.sources

    def _check_given_up(self, name: str) -> None:
        facts = self._facts[name]
        for compaction, since_ms in facts.free_since_ms.items():
            tries = facts.tries(compaction)[0]
            is_due = tries >= self._world.scenario.max_attempts
            if (
                is_due
                and self._places[name].is_well_since(since_ms - ALLOWED_MS)
                and self._world.now_ms - since_ms > 2 * ALLOWED_MS
            ):
                raise self._world.fail(
                    rules.GIVEN_UP, f"{compaction} of {name} has failed {tries} times and goes on"
                )

    def _check_return(self, pool: Pool, name: str) -> None:
        place, looks, now_ms = self._places[name], pool.of(name), self._world.now_ms
        if place.trouble is not None or looks.is_well:
            return
        pause_ms = QUARANTINE_PAUSE.after_ms(looks.failed)
        due_ms = max(place.well_since_ms, pool.started_ms, looks.failed_at_ms + pause_ms) + ALLOWED_MS
        if now_ms > due_ms and looks.well_at_ms < now_ms - ALLOWED_MS:
            since_s = (now_ms - place.well_since_ms) / 1000
            raise self._world.fail(
                rules.RETURNS, f"{pool.name} leaves {name} alone, which is well for {since_s:.0f} s"
            )

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
                raise self._world.fail(
                    rules.IDLE,
                    f"{compaction} of {name} is free for {(now_ms - since_ms) / 1000:.0f} s, and {pool.name} "
                    f"runs {running} of {pool.slots}",
                )
