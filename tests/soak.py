"""`make soak`, or `python -m tests.soak`: Lithify keeps a database in shape while its workers keep dying.

1. A real client holds a database, writes, overwrites and deletes in batches, and flushes each into a new L0.
   It stalls at `l0_max_ssts` L0s, as it would anywhere.
2. `lithify coordinator` schedules, reclaims, commits, and collects garbage of a few seconds' age. Three
   `lithify worker` processes of one core each work; every few seconds one of them, chosen by the seed, is
   killed (SIGKILL, sometimes SIGTERM, sometimes SIGSTOP for longer than the timeout), and started again.
3. A watch reads ledger and manifest ten times a second and notes how long each duty of the coordinator was
   overdue: something to schedule, a silent worker to take from, something to commit; and how long work
   waited while a worker was ready and idle.
4. At the end the workers are left alone until nothing is to be compacted. Then a few more flushes and their
   compaction move the limits of the garbage collector (the newest L0, the oldest compaction in the ledger:
   what is younger may be under way) past everything the accidents left behind, and that can age.

It has passed when the final scan equals the model, nothing lies in the store that nobody needs and that is
older than the age, no process left children behind or wrote a traceback, the protocol was kept, and no stall
of the writer could have been avoided by a healthy coordinator: while the writer stood at its limit, no duty
was overdue by more than the grace. (What a stall is made of then is workers starting and working.)
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lithify.base.errors import ObjectNotFound
from lithify.base.ids import Ulid, parse_ulid, ulid_ms
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.protocol.model import CompactionState, Ledger
from tests.compacting import check_state_files, dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, open_db
from tests.processes.nodes import Nodes, Process, nodes_in
from tests.processes.writer import Writer

WORKERS = 3
KEYS = 40_000
VALUE_BYTES = 250
BATCH = 2_000
FLUSH_EVERY_S = 2.5
L0_MAX_SSTS = 8
KILL_EVERY_S = (3.0, 9.0)
ENDINGS = (signal.SIGKILL,) * 7 + (signal.SIGTERM,) * 2 + (signal.SIGSTOP,)
READY_AFTER_S = 20.0
"""A worker older than this has its Spark session, on a busy machine too."""
POLL_S = 0.25
TIMEOUT_S = 5.0
MIN_AGE_S = 5.0
COLLECT_EVERY_S = 2.0
CHECKPOINT_LIFETIME_S = 10.0
OLDEST_S = CHECKPOINT_LIFETIME_S + MIN_AGE_S + 5 * COLLECT_EVERY_S
"""Garbage may be pinned by a checkpoint, then has to reach its age, then is collected; twice, where one
collection makes garbage for the next."""
LAST_FLUSHES = 4
"""What the scheduler wants for a compaction."""
WATCH_EVERY_S = 0.1
GRACE_S = 5.0
"""A duty may be late by so much, on a machine whose cores are all taken by starting workers."""
QUIET_LIMIT_S = 180.0
CALL_LIMIT_S = 300.0

_KINDS = ("manifest", "compactions", "compacted", "wal", "wal_fence", "detach", "lithify")
_COLLECTING = f'interval = "{COLLECT_EVERY_S}s"\nmin_age = "{MIN_AGE_S}s"\n'
CONFIG = f"""\
[service]
poll_interval = "{POLL_S}s"
commit_compacted_interval = "{POLL_S}s"
worker_heartbeat_timeout = "{TIMEOUT_S}s"
[service.worker]
compactions_poll_interval = "{POLL_S}s"
heartbeat_interval = "1s"
heartbeat_min_interval = "500ms"
[slatedb]
checkpoint_lifetime = "{CHECKPOINT_LIFETIME_S}s"
max_sst_size = {256 * 1024}
[spark]
master = "local[1]"
[spark.conf]
"spark.driver.memory" = "512m"
[log]
format = "json"
""" + "".join(f"[slatedb.garbage_collector_options.{kind}_options]\n{_COLLECTING}" for kind in _KINDS)


@dataclass(slots=True)
class Duty:
    """Something that has to be done, and how long it has stayed undone."""

    since_s: float | None = None
    longest_s: float = 0.0
    longest_in_a_stall_s: float = 0.0

    def note(self, is_due: bool, now_s: float, is_stalled: bool) -> None:
        if not is_due:
            self.since_s = None
            return
        self.since_s = now_s if self.since_s is None else self.since_s
        waited_s = now_s - self.since_s
        self.longest_s = max(self.longest_s, waited_s)
        if is_stalled:
            self.longest_in_a_stall_s = max(self.longest_in_a_stall_s, waited_s)


@dataclass(slots=True)
class Seen:
    """What the watch has noted."""

    duties: dict[str, Duty] = field(
        default_factory=lambda: {
            name: Duty() for name in ("schedule", "take back", "commit", "claim (by an idle worker)")
        }
    )
    max_l0: int = 0
    stalled_s: float = 0.0
    finished: Counter[str] = field(default_factory=Counter)
    """Compactions by terminal state."""
    wrong: list[str] = field(default_factory=list)
    """Transitions that the protocol does not allow."""


class Watch:
    """Looks at the database again and again, in a thread."""

    def __init__(self, dataset: SlateDataset, has_ready_worker: Callable[[Ledger], bool]) -> None:
        self.seen = Seen()
        self._dataset = dataset
        self._has_ready_worker = has_ready_worker
        self._states: dict[str, CompactionState] = {}
        self._looked_s = time.monotonic()

    def look(self) -> None:
        """One look."""
        with suppress(ObjectNotFound):  # collected between two reads
            ledger = self._dataset.ledger()
            if ledger is None:
                return
            manifest = self._dataset.snapshot()
            plan = self._dataset.propose(manifest, ledger)
            self._note(ledger, max(len(tree.l0) for tree in manifest.trees()), bool(plan.proposals))

    def _note(self, ledger: Ledger, l0: int, has_proposals: bool) -> None:
        now_s, now_ms = time.monotonic(), time.time() * 1000
        is_stalled = l0 >= L0_MAX_SSTS
        self.seen.max_l0 = max(self.seen.max_l0, l0)
        if is_stalled:
            self.seen.stalled_s += now_s - self._looked_s
        self._looked_s = now_s
        active = ledger.active()
        silent = any(
            c.worker is not None and now_ms - c.worker.last_heartbeat_ms > TIMEOUT_S * 1000
            for c in active
            if c.state is CompactionState.RUNNING
        )
        is_free = any(c.state is CompactionState.SCHEDULED for c in active)
        due = {
            "schedule": has_proposals or any(c.state is CompactionState.SUBMITTED for c in active),
            "take back": silent,
            "commit": any(c.state is CompactionState.COMPACTED for c in active),
            "claim (by an idle worker)": is_free and self._has_ready_worker(ledger),
        }
        for name, is_due in due.items():
            self.seen.duties[name].note(is_due, now_s, is_stalled)
        for compaction in ledger.compactions:
            before, after = self._states.get(compaction.id), compaction.state
            self._states[compaction.id] = after
            if before is not after and after.is_terminal:
                self.seen.finished[after.value] += 1
            if before is not None and before.is_terminal and after is not before:
                self.seen.wrong.append(f"{compaction.id}: {before.value} to {after.value}")


@contextmanager
def repeating(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do it again and again in a thread while the block runs; its error is raised at the end."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.wait(every_s):
                action()
        except BaseException as error:
            traceback.print_exc()  # what comes until the end is worth less
            errors.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


class Workers:
    """Three worker processes, one of which is killed now and then."""

    def __init__(self, nodes: Nodes, start: Callable[[], Process], rng: random.Random) -> None:
        self.endings: Counter[str] = Counter()
        self.slow_end_s = 0.0
        self._nodes = nodes
        self._start = start
        self._rng = rng
        self._running = [(start(), time.monotonic()) for _ in range(WORKERS)]

    def end_one(self) -> None:
        """Let something happen to one, and start another in its place."""
        index = self._rng.randrange(WORKERS)
        process, _ = self._running[index]
        how = self._rng.choice(ENDINGS)
        assert process.exit_code is None, f"a worker ended by itself: {process.errors[-2000:]}"
        self.endings[how.name] += 1
        if how is signal.SIGSTOP:
            process.freeze()
            time.sleep(TIMEOUT_S + 1)
            process.thaw()
            return
        if how is signal.SIGTERM:
            # One that has only just been started does not listen yet, and ends as any program does.
            assert process.terminate() in (0, -signal.SIGTERM), process.errors[-2000:]
        else:
            process.kill()
        self._running[index] = (self._start(), time.monotonic())

    def has_ready(self, ledger: Ledger) -> bool:
        """Whether a worker has been up for long enough, and runs nothing."""
        busy = {
            c.worker.id
            for c in ledger.active()
            if c.state is CompactionState.RUNNING and c.worker is not None
        }
        ready = sum(time.monotonic() - since_s > READY_AFTER_S for _, since_s in self._running)
        return ready > len(busy)


def is_quiet(dataset: SlateDataset) -> bool:
    """Whether nothing is being compacted or to be compacted."""
    ledger = dataset.ledger()
    if ledger is None or ledger.active():
        return False
    snapshot = dataset.snapshot()
    has_enough_l0 = any(len(tree.l0) >= LAST_FLUSHES for tree in snapshot.trees())
    return not has_enough_l0 and not dataset.propose(snapshot, ledger).proposals


def youngest_garbage_ms(admin: Admin) -> int:
    """SSTs from this time on may be under way, as far as a garbage collector can know."""
    l0s = [view.sst_id for tree in admin.trees() for view in tree.l0]
    markers = [tree.marker for tree in admin.trees() if tree.marker is not None]
    compactions = [entry.id for entry in admin.read_compactions().recent_compactions]
    return min(ulid_ms(Ulid(max(l0s or markers))), *(ulid_ms(Ulid(str(c))) for c in compactions))


def records_of(history: Path) -> set[str]:
    """What is kept for longer than this lasts: what each claim came to, and of each compaction one commit."""
    files = sorted(file.name for file in history.iterdir())
    commits = {name.split("-", 1)[1]: name for name in files if name.endswith("-commit.json")}
    return {*commits.values(), *(name for name in files if name.endswith("-work.json"))}


def leaked(path: Path, dataset: SlateDataset, now_s: float, limit_ms: int) -> list[str]:
    """Objects nobody needs that are older than any garbage may be."""
    limit_s = now_s - OLDEST_S
    admin = Admin(path)
    manifest = admin.read_manifest()
    pinned = {manifest.id, *(c.manifest_id for c in admin.list_checkpoints())}
    needed = {f"{number:020d}.manifest" for number in pinned}
    for number in pinned:
        for tree in admin.trees(number):
            views = [*tree.l0, *(view for run in tree.runs for view in run.views)]
            needed |= {f"{view.sst_id}.sst" for view in views}
    needed |= {f"{admin.read_compactions().id:020d}.compactions"}
    first_wal = dataset.snapshot().replay_after_wal_id
    records = records_of(path / "lithify" / "history")
    found = []
    for file in path.rglob("*"):
        folder = file.relative_to(path).parts[0]
        if not file.is_file() or file.name in needed or folder == "gc":
            continue
        is_kept = file.name in ("coordinator.json", "coordinator.json#0")
        is_kept = is_kept or (folder == "wal" and int(file.stem) >= first_wal)
        is_kept = is_kept or (folder == "compacted" and is_younger(file.stem, limit_ms))
        is_kept = is_kept or file.name in records
        if not is_kept and file.stat().st_mtime < limit_s:
            found.append(str(file.relative_to(path)))
    return found


def is_younger(stem: str, limit_ms: int) -> bool:
    """Whether this is the name of an SST that young; anything else is no name of an SST."""
    try:
        return ulid_ms(parse_ulid(stem)) >= limit_ms
    except ValueError:
        return False


class Soak:
    """One soak."""

    def __init__(self, folder: Path, seed: int, console: Console) -> None:
        self._path = folder / "db"
        self._folder = folder
        self._rng = random.Random(seed)
        self._console = console
        self._problems: list[str] = []

    def run(self, minutes: float) -> bool:
        """Whether it has passed."""
        config = self._folder / "lithify.toml"
        config.write_text(CONFIG)
        settings = {"l0_max_ssts": L0_MAX_SSTS, "l0_max_ssts_per_key": L0_MAX_SSTS}
        dataset = dataset_at(self._path)
        common = (str(self._path), "--config", str(config))
        with (
            open_db(self._path, settings=settings, timeout_s=CALL_LIMIT_S) as database,
            nodes_in(self._folder / "logs") as nodes,
        ):
            coordinator = nodes.command("coordinator", *common)
            workers = Workers(nodes, lambda: nodes.command("worker", *common), self._rng)
            watch = Watch(dataset, workers.has_ready)
            writer = Writer(
                database,
                {},
                keys=KEYS,
                batch=BATCH,
                value_bytes=VALUE_BYTES,
                pause_s=FLUSH_EVERY_S,
                seed=self._rng.randrange(1 << 30),
            )
            with repeating(watch.look, WATCH_EVERY_S):
                with writer:
                    self._disturb(minutes, workers, coordinator, writer, watch)
                self._console.print("workers are left alone", highlight=False)
                wait_until(lambda: is_quiet(dataset), QUIET_LIMIT_S)
                calm_ms = int(time.time() * 1000)
                for _ in range(LAST_FLUSHES):
                    writer.write()
                wait_until(lambda: is_quiet(dataset), QUIET_LIMIT_S)
                time.sleep(OLDEST_S)
            rows = dict(database.scan())
            self._demand(rows == writer.model, f"{len(rows)} rows, the model has {len(writer.model)}")
            self._check_end(dataset, coordinator, nodes, calm_ms)
        self._report(workers, writer, watch.seen)
        return not self._problems

    def _disturb(
        self, minutes: float, workers: Workers, coordinator: Process, writer: Writer, watch: Watch
    ) -> None:
        started_s = said_s = time.monotonic()
        while time.monotonic() - started_s < minutes * 60:
            time.sleep(self._rng.uniform(*KILL_EVERY_S))
            workers.end_one()
            writer.check()
            assert coordinator.exit_code is None, f"the coordinator ended: {coordinator.errors[-2000:]}"
            if time.monotonic() - said_s > 20:
                said_s = time.monotonic()
                seen = watch.seen
                self._console.print(
                    f"{said_s - started_s:4.0f} s: {writer.batches} flushes, {seen.finished['completed']} "
                    f"compactions, {sum(workers.endings.values())} accidents, stalled {seen.stalled_s:.1f} s",
                    highlight=False,
                )

    def _check_end(self, dataset: SlateDataset, coordinator: Process, nodes: Nodes, calm_ms: int) -> None:
        limit_ms = youngest_garbage_ms(Admin(self._path))
        self._demand(limit_ms > calm_ms, "the garbage collector's limits did not move on")
        left = leaked(self._path, dataset, time.time(), limit_ms)
        self._demand(not left, f"{len(left)} objects leaked: {', '.join(left[:5])}")
        check_state_files(dataset, self._path)
        for process in nodes.all:
            self._demand("Traceback" not in process.errors, f"a traceback in {process.log.stem}")
        self._demand(coordinator.terminate() == 0, f"the coordinator: {coordinator.errors[-500:]}")

    def _report(self, workers: Workers, writer: Writer, seen: Seen) -> None:
        self._demand(not seen.wrong, f"not allowed: {seen.wrong}")
        for name, duty in seen.duties.items():
            late_s = duty.longest_in_a_stall_s
            self._demand(late_s <= GRACE_S, f"the writer stood still while '{name}' was {late_s:.1f} s late")
            self._console.print(f"{name}: undone for at most {duty.longest_s:.1f} s", highlight=False)
        endings = ", ".join(f"{count} {name}" for name, count in sorted(workers.endings.items()))
        finished = ", ".join(f"{count} {name}" for name, count in sorted(seen.finished.items()))
        self._console.print(f"accidents: {endings}; compactions: {finished}", highlight=False)
        self._console.print(
            f"{writer.batches} flushes, the slowest took {writer.longest_s:.1f} s; {len(writer.model)} rows; "
            f"at most {seen.max_l0} L0s, {seen.stalled_s:.1f} s at the limit of {L0_MAX_SSTS}",
            highlight=False,
        )
        for problem in self._problems:
            self._console.print(f"[red]{problem}[/]", highlight=False)
        self._console.print("[red]FAILED[/]" if self._problems else "[green]passed[/]")

    def _demand(self, is_so: bool, problem: str) -> None:
        if not is_so:
            self._problems.append(problem)


def main() -> int:
    """Soak for as long as asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--keep", action="store_true", help="keep the database and the logs")
    arguments = parser.parse_args()
    console = Console()
    console.print(f"python -m tests.soak --minutes {arguments.minutes:g} --seed {arguments.seed}")
    folder = Path(tempfile.mkdtemp(prefix="lithify-soak-"))
    passed = False
    try:
        passed = Soak(folder, arguments.seed, console).run(arguments.minutes)
    finally:
        if passed and not arguments.keep:
            shutil.rmtree(folder)
        else:
            console.print(f"database and logs: {folder}", highlight=False)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
