"""An engine that goes down says nothing against the work it was given, and one that is gone for good ends the
process with its own exit code."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from lithify.base import events
from lithify.base.errors import EngineDown, Refused
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.engine.spark import SparkEngine
from lithify.protocol.model import CompactionState
from lithify.service import one_shot
from lithify.service.loops import run_workers
from lithify.testing.engine import InlineEngine, SubmittedCall, TaskFault
from tests.compacting import compact
from tests.protocol.conftest import plain_template, rig
from tests.protocol.rig import Rig
from tests.service.toys import Service, ToySpec

__all__ = ["plain_template", "rig"]

GONE = EngineDown("Spark was lost 3 times in a row")


def failing(times: int) -> InlineEngine:
    """An engine that is lost under its first calls."""
    left = times

    def fault(_: SubmittedCall) -> TaskFault:
        nonlocal left
        left -= 1
        return TaskFault.ENGINE_DOWN if left >= 0 else TaskFault.NONE

    return InlineEngine(slots=10, faults=fault)


def test_an_engine_that_goes_down_uses_up_no_attempts() -> None:
    service = Service("a", "b", engine=failing(20), max_concurrent_compactions=4)
    for toy in service.toys.values():
        toy.add(*(ToySpec("unit") for _ in range(4)))
    service.rounds(12)
    for toy in service.toys.values():
        assert toy.states() == {CompactionState.COMPACTED: 4}
        assert not toy.journal.attempts()
    assert len(service.seen(events.EngineLost)) == 20
    assert not service.seen(events.AttemptFailed)
    assert not service.seen(events.Quarantined)


def test_an_engine_that_is_gone_for_good_ends_the_process_and_gives_all_back() -> None:
    engine = InlineEngine(slots=10, stepped=True)
    service = Service("a", "b", engine=engine, max_concurrent_compactions=8)
    for toy in service.toys.values():
        toy.add(*(ToySpec("unit") for _ in range(4)))

    class Lost(threading.Event):
        """The engine is lost in the second round."""

        def is_set(self) -> bool:
            if engine.waiting:
                engine.failure = GONE
                engine.run_all()
            return False

    with pytest.raises(EngineDown, match="3 times") as ended:
        run_workers(service.pool, Lost(), random.Random(1), ServiceSettings())
    assert ended.value.exit_code == 7
    for toy in service.toys.values():
        assert toy.states() == {CompactionState.SCHEDULED: 4}
        assert not toy.journal.attempts()


def test_a_single_run_goes_on_when_its_engine_is_back(rig: Rig) -> None:
    result = compact(rig.dataset(), engine=failing(5), clock=rig.clock)
    assert len(result.committed) == 1
    assert not result.failures
    rig.check()


def test_a_single_run_ends_when_its_engine_is_gone(rig: Rig) -> None:
    engine = InlineEngine()
    leadership = Leadership(rig.dataset(), rig.clock, RandomIds())

    def observe(event: events.Event) -> None:
        if isinstance(event, events.Claimed):
            engine.failure = GONE

    with pytest.raises(EngineDown, match="3 times"):
        one_shot.run(
            rig.dataset(),
            engine,
            rig.clock,
            RandomIds(),
            leadership,
            planner=rig.dataset().planner(full=True),
            observer=observe,
        )
    assert rig.states() == [CompactionState.SCHEDULED]
    assert not rig.dataset().journal.attempts()


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_master_that_does_not_answer_is_named_before_anything_is_written(rig: Rig, scheme: str) -> None:
    master = f"{scheme}://{nobody()}"
    with SparkEngine(master) as engine, pytest.raises(EngineDown, match=master) as refused:
        compact(rig.dataset(), engine=engine, clock=rig.clock)
    assert refused.value.exit_code == 7
    assert rig.dataset().ledger() is None
    assert rig.dataset().lease.read() is None


@pytest.mark.parametrize(
    "master", ["locl[2]", "local[two]", "spark:host:7077", "http://host:7077", "", "YARN"]
)
def test_what_is_no_master_is_refused_before_anything_is_written(rig: Rig, master: str) -> None:
    with SparkEngine(master) as engine, pytest.raises(Refused, match="is not a Spark master"):
        compact(rig.dataset(), engine=engine, clock=rig.clock)
    assert rig.dataset().ledger() is None
    assert rig.dataset().lease.read() is None


def test_of_several_masters_one_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        alive = f"127.0.0.1:{server.getsockname()[1]}"
        SparkEngine(f"spark://{nobody()},{alive}").check()
    for master in (
        "local",
        "local[2]",
        "local[*]",
        "local-cluster[2,1,512]",
        "yarn",
        "k8s://https://nobody:1",
    ):
        SparkEngine(master).check()
