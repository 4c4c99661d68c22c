"""What happens to processes in the middle of a compaction, and what it costs. Tests play it with little
data, `python -m tests.chaos` with much.

Each function starts a coordinator and a worker on a database with one compaction to do, waits until some
ranges are finished and recorded, lets the accident happen, waits until the compaction is committed, and
says what it saw. What must hold after every accident is checked here: nobody moved on what was not his,
no range that was recorded was written again, and all others were.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from lithify.base.errors import EngineDown
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.protocol.model import CompactionState
from tests.cluster import Cluster
from tests.compacting import dataset_at
from tests.engine.waiting import descendants, wait_until
from tests.processes.history import check_protocol, history, latest, lives, owner, recorded
from tests.processes.node import NodeOptions
from tests.processes.nodes import Facts, Nodes, Process

LIMIT_S = 240.0
NEVER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an accident happens."""

    path: Path
    nodes: Nodes
    enough: int
    """Recorded ranges at which it happens."""
    worker_heartbeat_timeout_ms: int
    max_sst_size: int
    master: str = "local[1]"
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    def coordinator(self, timeout_ms: int | None = None, *, take_over: bool = True) -> Process:
        """Start one."""
        options = NodeOptions(
            "coordinator",
            str(self.path),
            worker_heartbeat_timeout_ms=timeout_ms or self.worker_heartbeat_timeout_ms,
            take_over=take_over,
        )
        return self.nodes.node(options)

    def worker(self, name: str) -> Process:
        """Start one of that name."""
        options = NodeOptions(
            "worker",
            str(self.path),
            name=name,
            master=self.master,
            spark_conf=self.spark_conf,
            max_sst_size=self.max_sst_size,
        )
        return self.nodes.node(options)

    def service(self, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> Process:
        """Start `lithify worker`, as a supervisor does: for this database, unless the arguments say more. It
        gives itself a name."""
        options = [f"--spark-conf={name}={value}" for name, value in self.spark_conf.items()]
        sets = {
            "service.worker.heartbeat_interval": "500ms",
            "service.worker.heartbeat_min_interval": "200ms",
            "slatedb.max_sst_size": str(self.max_sst_size),
            "log.level": "debug",
        }
        options += [f"--set={name}={value}" for name, value in sets.items()]
        options += ["--master", self.master, "--log-format", "json"]
        named = arguments or (str(self.path),)
        return self.nodes.command("worker", *named, *options, environment=environment)

    def wait_for_the_middle(self) -> str:
        """Wait until enough is recorded; the compaction's id."""
        wait_until(lambda: len(recorded(self.compaction())) >= self.enough, LIMIT_S)
        compaction = self.compaction()
        assert compaction is not None
        return compaction.id

    def compaction(self) -> SlateCompaction | None:
        """The first there was; later ones come from what the writer adds."""
        ledger = latest(self.path)
        return ledger.compactions[0] if ledger is not None and ledger.compactions else None

    def wait_for_commit(self, coordinator: Process, compaction_id: str) -> None:
        wait_until(
            lambda: any(e["compaction"] == compaction_id for e in coordinator.events("Committed")), LIMIT_S
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an accident cost."""

    ranges: int
    finished_before: int
    run_afterwards: int
    """Ranges that wrote anything after the accident."""
    reclaimed_after_s: float | None = None
    """From the last sign of life to the ledger in which the compaction is free again."""
    commit_after_s: float = 0.0
    """From the accident to the commit."""


def kill_worker(stage: Stage) -> Outcome:
    """SIGKILL; another worker starts."""
    coordinator = stage.coordinator()
    first = stage.worker("first")
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    first.kill()
    before = recorded(stage.compaction())
    second = stage.worker("second")
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    assert_life(stage, compaction_id, "first", "second")
    return _outcome(stage, "first", second, compaction_id, before, taken_s)


def freeze_worker(stage: Stage) -> Outcome:
    """SIGSTOP for longer than the timeout, then SIGCONT while another worker is at work."""
    coordinator = stage.coordinator()
    workers = {name: stage.worker(name) for name in ("one", "other")}
    compaction_id = stage.wait_for_the_middle()
    first = owner(stage.compaction())
    assert first is not None
    (second,) = workers.keys() - {first}
    at_s = time.monotonic()
    workers[first].freeze()
    before = recorded(stage.compaction())
    wait_until(lambda: coordinator.events("Reclaimed"), LIMIT_S)
    wait_until(lambda: wrote(workers[second], compaction_id), LIMIT_S)
    workers[first].thaw()
    wait_until(lambda: workers[first].events("Lost"), LIMIT_S)
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    assert compaction_id not in {e["compaction"] for e in workers[first].events("Compacted")}
    assert_life(stage, compaction_id, first, second)
    return _outcome(stage, first, workers[second], compaction_id, before, taken_s)


def stop_worker(stage: Stage) -> Outcome:
    """SIGTERM; nothing can be reclaimed, so what it holds must be given back. Another worker starts."""
    coordinator = stage.coordinator(NEVER_MS)
    first = stage.worker("first")
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    assert first.terminate() == 0, first.errors
    compaction = stage.compaction()
    assert compaction is not None
    assert (compaction.state, compaction.worker) == (CompactionState.SCHEDULED, None)
    before = recorded(compaction)
    assert before >= wrote(first, compaction_id), "something was finished and not recorded"
    second = stage.worker("second")
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    assert not coordinator.events("Reclaimed")
    assert_life(stage, compaction_id, "first", "second")
    return _outcome(stage, "first", second, compaction_id, before, taken_s)


def kill_executor(stage: Stage) -> Outcome:
    """SIGKILL of one of a cluster's executors; Spark runs its range again, and the worker goes on."""
    coordinator = stage.coordinator()
    worker = stage.worker("worker")
    compaction_id = stage.wait_for_the_middle()
    executors = _executors()
    assert len(executors) == 2
    at_s = time.monotonic()
    os.kill(executors[0], signal.SIGKILL)
    before = frozenset(wrote(worker, compaction_id))
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    assert_life(stage, compaction_id, "worker")
    check_protocol(history(stage.path))
    finished = [e["index"] for e in worker.events("RangeFinished") if e["compaction"] == compaction_id]
    ranges = _ranges(stage, compaction_id)
    assert sorted(finished) == list(range(ranges)), "each range finishes once"
    return Outcome(ranges, len(before), ranges - len(before), commit_after_s=taken_s)


def kill_jvm(stage: Stage) -> Outcome:
    """SIGKILL of the JVM under a worker: the process gives back what ran, starts another JVM and goes on."""
    coordinator = stage.coordinator(NEVER_MS)
    worker = stage.service()
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    assert _kill_jvms(worker)
    wait_until(lambda: worker.events("EngineLost"), LIMIT_S)
    assert Ulid(compaction_id) not in dataset_at(stage.path).journal.attempts()
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    assert worker.exit_code is None
    return _after_a_lost_engine(stage, compaction_id, worker, worker, taken_s)


def kill_every_jvm(stage: Stage) -> Outcome:
    """SIGKILL of every JVM that a worker starts: it ends, with the exit code that tells its supervisor to
    start another."""
    coordinator = stage.coordinator(NEVER_MS)
    first = stage.service()
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    wait_until(lambda: not _kill_jvms(first) and first.exit_code is not None, LIMIT_S)
    assert_down(first, "Spark")
    assert_given_back(stage, compaction_id)
    second = stage.service()
    stage.wait_for_commit(coordinator, compaction_id)
    return _after_a_lost_engine(stage, compaction_id, first, second, time.monotonic() - at_s)


def kill_master(stage: Stage, cluster: Cluster) -> Outcome:
    """SIGKILL of a cluster's master: the worker goes on with the executors it has, and one that starts now
    says which master does not answer."""
    coordinator = stage.coordinator(NEVER_MS)
    first = stage.service()
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    cluster.kill_master()
    before = frozenset(wrote(first, compaction_id))
    _refuse_to_start(stage, cluster, name_of(first, compaction_id))
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    assert_life(stage, compaction_id, name_of(first, compaction_id))
    check_protocol(history(stage.path))
    cluster.restart_master()
    ranges = _ranges(stage, compaction_id)
    return Outcome(ranges, len(before), ranges - len(before), commit_after_s=taken_s)


def kill_cluster(stage: Stage, cluster: Cluster) -> Outcome:
    """SIGKILL of a cluster's master and of all executors: the worker notices that none will come any more and
    ends, another says which master does not answer, and one that starts when the master is back finishes."""
    coordinator = stage.coordinator(NEVER_MS)
    first = stage.service()
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    cluster.kill_master()
    executors = _executors()
    assert len(executors) == 2
    for pid in executors:
        os.kill(pid, signal.SIGKILL)
    first.wait(LIMIT_S)
    assert_down(first, cluster.url)
    assert_given_back(stage, compaction_id)
    _refuse_to_start(stage, cluster, name_of(first, compaction_id))
    cluster.restart_master()
    second = stage.service()
    stage.wait_for_commit(coordinator, compaction_id)
    return _after_a_lost_engine(stage, compaction_id, first, second, time.monotonic() - at_s)


def freeze_coordinator(stage: Stage) -> Outcome:
    """SIGSTOP until another coordinator has waited for the end of its lease and taken over, then
    SIGCONT. The worker goes on through all of it."""
    first = stage.coordinator()
    worker = stage.worker("worker")
    compaction_id = stage.wait_for_the_middle()
    at_s = time.monotonic()
    first.freeze()
    before = frozenset(wrote(worker, compaction_id))
    second = stage.coordinator(take_over=False)
    wait_until(lambda: second.events("EpochTaken"), LIMIT_S)
    first.thaw()
    assert first.wait() != 0
    assert "Fenced" in first.errors
    stage.wait_for_commit(second, compaction_id)
    taken_s = time.monotonic() - at_s
    assert_life(stage, compaction_id, "worker")
    check_protocol(history(stage.path))
    ranges = _ranges(stage, compaction_id)
    return Outcome(ranges, len(before), ranges - len(before), commit_after_s=taken_s)


def leave_compacted(stage: Stage) -> None:
    """No accident: the compaction is done but for its commit, because the coordinator is gone."""
    coordinator = stage.coordinator()
    worker = stage.worker("worker")
    wait_until(lambda: worker.events("Claimed"), LIMIT_S)
    assert coordinator.terminate() == 0, coordinator.errors
    wait_until(lambda: worker.events("Compacted"), LIMIT_S)
    assert worker.terminate() == 0, worker.errors


def wrote(process: Process, compaction_id: str) -> set[int]:
    """The ranges for which a worker wrote anything."""
    finished = process.events("RangeFinished")
    return {e["index"] for e in finished if e["bytes_written"] and e["compaction"] == compaction_id}


def assert_life(stage: Stage, compaction_id: str, *workers: str) -> None:
    """In the end the compaction was run by these workers, each once and in this order, and committed."""
    wanted: list[tuple[CompactionState, str | None]] = []
    for worker in workers:
        wanted += [(CompactionState.SCHEDULED, None), (CompactionState.RUNNING, worker)]
    wanted += [(CompactionState.COMPACTED, workers[-1]), (CompactionState.COMPLETED, workers[-1])]
    # Before that, a worker on a slow machine may have been taken for dead while it was starting.
    assert lives(history(stage.path))[compaction_id][-len(wanted) :] == wanted


def _outcome(
    stage: Stage, first: str, second: Process, compaction_id: str, before: frozenset[int], taken_s: float
) -> Outcome:
    versions = history(stage.path)
    check_protocol(versions)
    ranges, again = _ranges(stage, compaction_id), wrote(second, compaction_id)
    assert again == set(range(ranges)) - before, "exactly what was not recorded runs again"
    return Outcome(ranges, len(before), len(again), _reclaimed_after_s(stage, compaction_id, first), taken_s)


def _reclaimed_after_s(stage: Stage, compaction_id: str, first: str) -> float:
    """From the last heartbeat of the worker to the next change of the compaction."""
    sign_s, after_s = 0.0, 0.0
    was_owner = False
    for version in history(stage.path):
        compaction = version.ledger.get(Ulid(compaction_id))
        is_owner = owner(compaction) == first
        if is_owner and compaction is not None and compaction.worker is not None:
            sign_s = compaction.worker.last_heartbeat_ms / 1000
        elif was_owner:
            after_s = version.written_s - sign_s
        was_owner = is_owner
    return after_s


def _ranges(stage: Stage, compaction_id: str) -> int:
    """As the first progress in the ledger has them."""
    for version in history(stage.path):
        compaction = version.ledger.get(Ulid(compaction_id))
        if compaction is not None and compaction.progress is not None:
            return len(compaction.progress.ranges)
    raise AssertionError(f"no progress of {compaction_id} was ever recorded")


def assert_down(worker: Process, named: str) -> None:
    """It has ended because its engine is gone, and says what that is."""
    assert worker.exit_code == EngineDown.exit_code, worker.errors
    (said,) = [line for line in worker.errors.splitlines() if line.startswith(EngineDown.__name__)]
    assert named in said


def _refuse_to_start(stage: Stage, cluster: Cluster, first: str) -> None:
    """A worker that is started while there is no master ends before it writes anything."""
    late = stage.service()
    late.wait(LIMIT_S)
    assert_down(late, cluster.url)
    assert not late.events()
    owners = {owner(c) for version in history(stage.path) for c in version.ledger.compactions}
    assert owners <= {None, first}


def assert_given_back(stage: Stage, compaction_id: str) -> None:
    """It is free, and no attempt at it has been noted."""
    compaction = stage.compaction()
    assert compaction is not None
    assert (compaction.id, compaction.state, compaction.worker) == (
        compaction_id,
        CompactionState.SCHEDULED,
        None,
    )
    assert compaction.id not in dataset_at(stage.path).journal.attempts()


def _after_a_lost_engine(
    stage: Stage, compaction_id: str, first: Process, second: Process, taken_s: float
) -> Outcome:
    """What the first had recorded when it gave the compaction back did not run again, and all else did."""
    versions = history(stage.path)
    check_protocol(versions)
    assert_life(stage, compaction_id, name_of(first, compaction_id), name_of(second, compaction_id))
    assert not first.events("AttemptFailed")
    assert not second.events("AttemptFailed")
    assert not stage_events(stage, "Reclaimed")
    free = [
        c
        for v in versions
        if (c := v.ledger.get(Ulid(compaction_id))) and c.state is CompactionState.SCHEDULED
    ]
    before, ranges = recorded(free[-1]), _ranges(stage, compaction_id)
    events = second.events()
    resumed = max(place for place, event in enumerate(events) if event["event"] == "Resumed")
    assert events[resumed]["finished_ranges"] == len(before)
    finished = [e for e in events[resumed:] if e["event"] == "RangeFinished"]
    again = {e["index"] for e in finished if e["compaction"] == compaction_id}
    assert again == set(range(ranges)) - before, "exactly what was not recorded runs again"
    return Outcome(ranges, len(before), len(again), commit_after_s=taken_s)


def stage_events(stage: Stage, name: str) -> list[Facts]:
    """The events of that name of all processes."""
    return [event for process in stage.nodes.all for event in process.events(name)]


def name_of(worker: Process, compaction_id: str) -> str:
    """The name under which it has claimed."""
    (name,) = {e["worker"] for e in worker.events("Claimed") if e["compaction"] == compaction_id}
    return str(name)


def _kill_jvms(worker: Process) -> int:
    """SIGKILL to the JVMs of its Spark, and to what is about to be one; how many."""
    below = [pid for pid in descendants(worker.pid) if _runs(pid, b"org.apache.spark.deploy.SparkSubmit")]
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(below)


def _executors() -> list[int]:
    """All that this process has below it."""
    return [pid for pid in descendants(os.getpid()) if _runs(pid, b"CoarseGrainedExecutorBackend")]


def _runs(pid: int, name: bytes) -> bool:
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
