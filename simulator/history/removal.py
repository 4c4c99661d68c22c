"""What removes Lithify's folder of the table: a program or a person that knows nothing of it."""

from __future__ import annotations

from simulator.history.judge import Judge
from simulator.history.lake import ROOT
from simulator.history.scenario import BUSY_MS
from simulator.history.world import World

_OLD_MS = 60_000
"""What a removal by age takes."""


def remove_folder(world: World, judge: Judge) -> None:
    """Remove it once, while everything goes on: all of it, or what was not written for a while."""
    world.scheduler.sleep_ms(world.rng.randint(BUSY_MS // 8, BUSY_MS))
    if world.is_calm:
        return
    before_ms = world.now_ms if world.scenario.removal == "whole" else world.now_ms - _OLD_MS
    gone = [meta for meta in world.objects.list(f"{ROOT}/_lithify") if meta.last_modified_ms <= before_ms]
    for meta in gone:
        world.objects.delete(meta.key)
    if gone:
        judge.removed([meta.key for meta in gone])
        world.count(f"fault: folder removed, {world.scenario.removal}")
        world.log("another program", f"removes {len(gone)} objects of Lithify's folder")
