"""Plays seeds of the world of a fleet."""

from __future__ import annotations

from lithify.testing.simulation.core.outcome import Outcome, Violation
from tests.planning.fleet.world import World


def simulate(seed: int) -> Outcome:
    """What comes of a seed."""
    world, violation = World(seed), None
    try:
        world.play()
    except Violation as found:
        violation = found
    return Outcome(seed, violation, world.counts, world.now_ms)
