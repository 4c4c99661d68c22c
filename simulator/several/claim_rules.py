"""Which claim is right: nothing is claimed before its pause is over, the most urgent is first, and nobody
waits for more turns than promised.

1. Only what has been free since before the pool's last look counts, and only while nothing rests. So a pool
   that is judged to pass something over could have claimed it.
2. Where the very numbers that a pool reckons with cannot be known, those are taken that speak for the pool:
   the lowest priority and age of what waits, the highest of what is claimed, since the last look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lithify.planning.turns import AGEING_TURNS
from simulator.several import rules
from simulator.several.facts import Facts
from simulator.several.places import Place
from simulator.several.pools import Pool
from simulator.several.world import World

_EPSILON = 1e-6


class ClaimRules:
    """Judges each claim of a pool by what the pool knew."""

    def __init__(self, world: World, places: Mapping[str, Place], facts: Mapping[str, Facts]) -> None:
        self._world = world
        self._places = places
        self._facts = facts
        self._retry_pause = world.scenario.retry_pause
        self._spare_ms = world.scenario.worker.spare_claim_delay_ms

    def claimed(self, pool: Pool, place: str, compaction: str) -> None:
        self._check_pauses(pool, place, compaction)
        self._check_turns_of_datasets(pool, place)
        self._check_turns_of_compactions(pool, place, compaction)

    def _check_pauses(self, pool: Pool, place: str, compaction: str) -> None:
        now_ms = self._world.now_ms
        looked_ms = pool.of(place).at_ms
        tries, last_ms = self._facts[place].tries_seen(compaction, pool.name, looked_ms)
        if now_ms < last_ms + self._retry_pause.after_ms(tries):
            raise self._world.fail(
                rules.PAUSES,
                f"{pool.name} claims {compaction} of {place} {now_ms - last_ms} ms after attempt {tries}",
            )
        if now_ms < pool.rests(place, self._retry_pause)[0]:
            raise self._world.fail(rules.PAUSES, f"{pool.name} claims of {place} while it rests")

    def _check_turns_of_datasets(self, pool: Pool, claiming: str) -> None:
        highest = self._highest_offer(pool, claiming)
        for place in self._places:
            looks = pool.of(place)
            eligible = list(self._eligible(pool, place)) if place != claiming else []
            if not eligible:
                continue
            lowest = max(
                0.0, *(looks.candidates[i].lowest - self._facts[place].tries(i)[0] for i in eligible)
            )
            if highest is not None and lowest + looks.passed_over / AGEING_TURNS > highest + _EPSILON:
                raise self._world.fail(
                    rules.URGENT,
                    f"{pool.name} claims of {claiming}, at most {highest:.3f} urgent, and {place} is "
                    f"{lowest:.3f} urgent and was passed over {looks.passed_over} times",
                )
            looks.passed_over += 1
            if looks.passed_over > AGEING_TURNS + len(self._places) - 1:
                raise self._world.fail(
                    rules.TURNS, f"{pool.name} has passed over {place} {looks.passed_over} times"
                )

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
            tries = self._facts[place].tries(other)[0]
            if claimed is not None:
                lowest = candidate.lowest - tries + candidate.passed_over / AGEING_TURNS
                age = looks.claims - looks.ages[compaction]
                highest = claimed.highest - claimed.tries + age / AGEING_TURNS
                if lowest > highest + _EPSILON:
                    raise self._world.fail(
                        rules.URGENT,
                        f"{pool.name} claims {compaction} of {place}, at most {highest:.3f} urgent, before "
                        f"{other}, which is {lowest:.3f} urgent",
                    )
            candidate.passed_over += 1
            candidate.rivals = max(candidate.rivals, len(self._facts[place].free_since_ms))
            if candidate.passed_over > AGEING_TURNS * (1 + tries) + candidate.rivals - 1:
                raise self._world.fail(
                    rules.TURNS,
                    f"{pool.name} has passed over {other} of {place} {candidate.passed_over} times",
                )

    def _eligible(self, pool: Pool, place: str) -> Iterator[str]:
        """What a pool could have claimed of a dataset, for certain, since its last look."""
        looks, facts = pool.of(place), self._facts[place]
        if not looks.is_well or pool.rests(place, self._retry_pause)[1] > looks.at_ms:
            return
        for compaction, candidate in looks.candidates.items():
            tries, last_ms = facts.tries(compaction)
            free_ms = max(
                last_ms + self._retry_pause.after_ms(tries), candidate.first_seen_ms + self._spare_ms
            )
            if compaction in facts.free_since_ms and free_ms <= looks.at_ms:
                yield compaction
