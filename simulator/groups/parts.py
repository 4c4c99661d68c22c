"""Processes one after the other, and what a part does again and again."""

from __future__ import annotations

from collections.abc import Callable

from lithify.base.errors import LithifyError
from lithify.testing.faulty import Crash
from simulator.groups import rules
from simulator.groups.scenario import AWAY_MS
from simulator.groups.world import Process, World

_RESTART_MS = 3_000
_CALM_PAUSE_MS = 1_000


def seat(world: World, kind: str, body: Callable[[Process], None], copy: str = "") -> None:
    """One process after the other, each the successor of one that was killed. `copy`: whose it is."""
    while True:
        process = world.process(kind)
        world.living.setdefault(copy, []).append(process)
        try:
            body(process)
            return
        except Crash:
            is_away = not world.is_calm and world.rng.random() < 0.1
            world.scheduler.sleep_ms(world.rng.randint(*AWAY_MS if is_away else (1, _RESTART_MS)))
        except Exception as error:
            text = f"{process.name} ends: {type(error).__name__}: {error}"
            raise world.fail(rules.SURVIVES, text) from error


def now_and_then(process: Process, pause_ms: int, action: Callable[[], object]) -> None:
    """Do something again and again, sooner once the world is calm. What fails is tried again."""
    while True:
        most_ms = min(pause_ms, _CALM_PAUSE_MS) if process.world.is_calm else 2 * pause_ms
        process.sleep_ms(process.rng.randint(1, most_ms))
        attempt(process, action)


def attempt(process: Process, action: Callable[[], object]) -> None:
    """Do something that may fail, as anybody's requests may."""
    try:
        action()
    except LithifyError as error:
        process.log(f"{type(error).__name__}: {error}")
