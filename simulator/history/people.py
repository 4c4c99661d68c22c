"""Processes one after the other, and what a part does again and again."""

from __future__ import annotations

from collections.abc import Callable

from lithify.base.errors import LithifyError, Refused
from lithify.datasets.iceberg.errors import translated
from lithify.testing.faulty import Crash
from simulator.history import rules
from simulator.history.world import Process, World

_RESTART_MS = 5_000


def seat(world: World, kind: str, body: Callable[[Process], None]) -> None:
    """One process after the other, each the successor of one that was killed."""
    while True:
        process = world.process(kind)
        try:
            body(process)
            return
        except Crash:
            world.scheduler.sleep_ms(world.rng.randint(1, _RESTART_MS))
        except Exception as error:
            text = f"{process.name} ends: {type(error).__name__}: {error}"
            raise world.fail(rules.SURVIVES, text) from error


def now_and_then(process: Process, pause_ms: int, action: Callable[[], object]) -> None:
    """Do something again and again, until the world is calm. What fails is tried again the next time."""
    while True:
        process.sleep_ms(process.rng.randint(1, 2 * pause_ms))
        if process.world.is_calm:
            return
        attempt(process, action)


def attempt(process: Process, action: Callable[[], object]) -> bool:
    """Do something that may fail, as anybody's requests may."""
    try:
        with translated(process.name):
            action()
    except LithifyError as error:
        process.log(f"{type(error).__name__}: {error}")
        return False
    return True


def insist(process: Process, action: Callable[[], object], pause_ms: int = 1_000) -> None:
    """Do something until it has not failed."""
    while not attempt(process, action):
        process.sleep_ms(pause_ms)


class Unwanted(Refused):
    """The catalog did not take what was asked: it names what is gone."""
