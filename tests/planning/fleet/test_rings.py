"""Whom a bell wakes."""

from __future__ import annotations

from dataclasses import replace

from lithify.planning.fleet.notifications import BACKUPS, MAX_RINGS, Ring, added, ring_of, unheard
from lithify.planning.fleet.task_offers import ClaimOffer

WORKERS = [f"worker-{n:03}" for n in range(100)]
HINT = ClaimOffer("s3://b/x", "C", 3, 0.5, 1, 1, worker="worker-007", idle_workers=100)


def test_a_ring_wakes_whom_the_hint_is_for_and_a_few_others() -> None:
    woken = [{w for w in WORKERS if ring_of(f"id{n}", "k", [HINT]).wakes(w)} for n in range(200)]
    assert all("worker-007" in of for of in woken)
    mean = sum(len(of) - 1 for of in woken) / len(woken)
    assert BACKUPS - 0.5 < mean < BACKUPS + 0.5
    assert len(set().union(*woken)) > 90, "others each time"


def test_a_ring_for_nobody_wakes_everybody() -> None:
    ring = ring_of("id", "k", [HINT, replace(HINT, compaction="D", worker=None)])
    assert all(map(ring.wakes, WORKERS))


def test_who_asks_in_time_misses_no_ring() -> None:
    rings: tuple[Ring, ...] = ()
    assert unheard(rings, ()) == ()
    known: set[str] = set()
    for n in range(30):
        rings = added(rings, Ring(f"id{n}", "k"))
        if n % 3 == 2:
            assert [ring.id for ring in unheard(rings, known) or ()] == [f"id{m}" for m in (n - 2, n - 1, n)]
            known = {ring.id for ring in rings}
    for n in range(MAX_RINGS):
        rings = added(rings, Ring(f"late{n}", "k"))
    assert unheard(rings, known) is None
    assert unheard((), known) is None, "the bell was lost"
