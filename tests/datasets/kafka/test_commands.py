"""Keyed logs through the commands, the library and the services, by their URLs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

import lithify
from lithify.api import wiring
from lithify.api.client import settled
from lithify.base.clock import SystemClock
from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.config.model import Config
from lithify.coordination.leadership import Term
from lithify.datasets.registry import config_type, registered_for
from lithify.mirror.metered_reads import metered
from lithify.observe.metrics import Metrics
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke, invoke_json
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import latest, put_segments, read_rows
from tests.fuzz.running import run, without_waiting
from tests.s3 import S3

NAME = "orders-0"
RUNS = 10
"""Each is a few rounds of the loop."""


def make_log(folder: Path, start: int = 0) -> Path:
    """The log of `put_log`, in a folder."""
    put_log(str(folder), start)
    return folder


def put_log(url: str, start: int = 0) -> None:
    """A partition of four segments, each of which overwrites what the one before has."""
    store, key = open_store(url)
    bases = range(start, start + 40, 10)
    rows = [[logs.data(n, ("a", f"{n}"), ("b", f"{n}"), (f"only {n}", "x"))] for n in bases]
    put_segments(store, key, rows)


def rows_in(folder: Path) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return read_rows(*open_store(str(folder)))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_log(tmp_path / "backup" / NAME)


@pytest.fixture
def url(folder: Path) -> str:
    return f"kafka+file://{folder}"


@pytest.fixture
def quick() -> Iterator[None]:
    """Commands start no Spark."""
    with without_waiting():
        yield


def test_one_partition_from_plan_to_garbage(folder: Path, url: str, quick: None) -> None:
    before = files_in(folder)
    planned = invoke_json("plan", url)
    assert [proposal["spec"]["partition"] for proposal in planned["proposals"]] == [NAME]
    assert "100% of" in planned["proposals"][0]["reason"]
    assert not Path(f"{folder}.compacted").exists()
    found = invoke_json("compact", url)
    assert found["after"][0]["is_compacted"]
    compacted = Path(f"{folder}.compacted") / found["after"][0]["folder"]
    rows = rows_in(compacted)
    assert latest(rows) == latest(rows_in(folder))
    assert [row[0] for row in rows] == [2, 12, 20, 21, 22, 30, 31, 32]
    assert files_in(folder) == before
    assert invoke_json("plan", url)["notes"] == [f"{NAME}: is compacted, and has not changed since"]
    assert "Nothing to compact" in invoke("compact", url).stdout
    assert invoke_json("status", url)["partitions"][0]["folder"] == found["after"][0]["folder"]
    assert len(invoke_json("history", url)["commits"]) == 3
    inspected = invoke_json("inspect", "segments", url)
    assert inspected["folders"] == {NAME: f"file://{compacted}"}
    assert len(inspected["segments"]) == 4
    assert invoke_json("gc", "--delete", "--min-age", "0", url)["deleted"]["segments"] == 0
    assert rows_in(compacted) == rows


def test_garbage_that_the_settings_only_report_stays(folder: Path, url: str, quick: None) -> None:
    invoke_json("compact", url)
    settings = ["--set", "kafka.garbage.dry_run=true", "--min-age", "0"]
    before = files_in(Path(f"{folder}.compacted"))
    reported = invoke_json("gc", "--delete", *settings, url)
    assert reported["dry_run"]
    after = files_in(Path(f"{folder}.compacted"))
    assert before.keys() <= after.keys()
    deleted = invoke_json("gc", "--delete", "--min-age", "0", url)["deleted"]
    assert deleted == reported["deleted"]
    assert sum(deleted.values())


def test_what_the_doctor_finds(folder: Path, url: str) -> None:
    findings = {f["check"]: f for f in json.loads(invoke("doctor", "--json", url).stdout)}
    assert findings["log"]["says"] == "1 partition, 4 segments"
    assert findings["delete"]["severity"] == "ok"
    assert not any(path.is_file() for path in Path(f"{folder}.compacted").rglob("*"))
    (folder / "x.log").write_bytes(b"")
    result = invoke("doctor", "--json", "--read-only", url)
    assert result.exit_code == 10
    assert "20 digits" in next(f["says"] for f in json.loads(result.stdout) if f["check"] == "log")


def test_all_partitions_of_a_topic(tmp_path: Path, quick: None) -> None:
    """One of them is damaged: the others are compacted, and what is damaged is said."""
    for number in range(3):
        make_log(tmp_path / "topic" / f"orders-{number}")
    damaged = tmp_path / "topic" / "orders-1" / f"{10:020d}.log"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    url, before = f"kafka+file://{tmp_path}/topic", files_in(tmp_path / "topic")
    result = invoke("compact", "--set", "service.max_attempts=1", "--json", url)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    (failed,) = document["failed"]
    assert f"{10:020d}.log" in failed["reason"]
    after = {one["partition"]: one["is_compacted"] for one in document["after"]}
    assert after == {"orders-0": True, "orders-1": False, "orders-2": True}
    assert files_in(tmp_path / "topic") == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["kafka+file://{folder}", "--output", "{folder}/out"], "lies in the log"),
        (["kafka+file://{folder}", "--output", "{folder}"], "lies in the log"),
        (["kafka+file://{folder}", "--output", "{folder}/../orders-0/x"], "lies in the log"),
        (["kafka+file://{folder}", "--output", "{folder}/.."], "lies in the output"),
        (["kafka+file://{folder}-none"], "neither segments"),
        (["kafka+file://{folder}/.."], "named after its partition"),
        (["kafka+file:orders-0"], "has no absolute path"),
        (["kafka+http://host/orders-0"], "'kafka+http' is not known"),
        (["kafka://bucket/orders-0"], "'kafka' is not known"),
        (["iceberg+file://{folder}"], "'iceberg+file' is not known"),
        (["kafka+memory://bucket"], "no folder can be next to it"),
        (["kafka+file://{folder}?x"], "%3F"),
    ],
)
def test_refusals(folder: Path, arguments: list[str], reason: str) -> None:
    if reason == "named after its partition":
        shutil.copytree(folder, folder.parent, dirs_exist_ok=True)
    before = files_in(folder.parents[1])
    for command in (["plan"], ["compact"], ["status"], ["gc"], ["submit", "--full"]):
        result = invoke(*command, *(text.format(folder=folder) for text in arguments))
        assert result.exit_code not in (0, 1), command
        assert reason in " ".join(result.stderr.split())
    assert files_in(folder.parents[1]) == before


def test_options_of_databases_are_refused(url: str) -> None:
    refused = invoke("compact", "--segment", "61", url)
    assert refused.exit_code == 2
    assert "is a log, and --segment is for SlateDB databases only" in " ".join(refused.stderr.split())
    assert "add --full" in invoke("submit", url).stderr
    assert "has no history" in invoke("expire", url).stderr


def test_a_broker_that_runs_in_the_directory(folder: Path, url: str) -> None:
    (folder.parent / ".lock").write_bytes(b"")
    assert "stop it cleanly" in " ".join(invoke("compact", url).stderr.split())
    (folder.parent / ".kafka_cleanshutdown").write_bytes(b"")
    assert "a broker's directory" in " ".join(invoke("compact", url).stderr.split())
    (folder.parent / "replication-offset-checkpoint").write_text("0\n1\norders 0 1000\n")
    outside = folder.parents[1] / "elsewhere" / "out"
    assert invoke_json("plan", "--output", outside, url)["proposals"]


@pytest.mark.parametrize("name", ["a b", "50%", "ünï", "it's", "a+b", "x#y", "qu?e", "[1]", "a:b", "~"])
def test_odd_names_of_folders(tmp_path: Path, quick: None, name: str) -> None:
    folder = make_log(tmp_path / name / NAME)
    url = f"kafka+file://{quote(str(folder))}"
    done = invoke_json("compact", url)
    compacted = Path(f"{folder}.compacted") / done["after"][0]["folder"]
    assert latest(rows_in(compacted)) == latest(rows_in(folder))
    pattern = f"kafka+file://{quote(str(tmp_path))}/*/*"
    found = registered_for(pattern).find(pattern, Config(), WaitPolicy())
    assert [unquote(one) for one in found] == [unquote(url)]
    assert "Nothing to compact" in invoke("compact", found[0]).stdout


@pytest.mark.parametrize(
    "written", ["{0}/", "{0}//", "{1}//orders-0", "{1}/../backup/orders-0", "{1}/./orders-0"]
)
def test_one_folder_written_in_many_ways(folder: Path, url: str, quick: None, written: str) -> None:
    other = "kafka+file://" + written.format(folder, folder.parent)
    invoke_json("compact", url)
    assert "Nothing to compact" in invoke("compact", other).stdout


def test_one_output_is_of_one_log(tmp_path: Path, folder: Path, url: str, quick: None) -> None:
    out = tmp_path / "out"
    invoke_json("compact", "--output", out, url)
    before = files_in(out)
    other = make_log(tmp_path / "other" / NAME, start=500)
    for command in ("plan", "compact", "gc"):
        result = invoke(command, "--output", out, f"kafka+file://{other}")
        assert result.exit_code == 2
        assert f"contains the output of file://{folder}" in " ".join(result.stderr.split())
    assert files_in(out) == before


def test_a_service(url: str) -> None:
    for _ in range(RUNS):
        assert run(["run", url]).exit_code == 0
        (partition,) = invoke_json("status", url)["partitions"]
        if partition["is_compacted"]:
            return
    raise AssertionError("nothing was compacted")


def test_the_library(folder: Path, url: str) -> None:
    settings = {"kafka.delete_retention": "2h", "kafka.segment_bytes": "1MiB"}
    with lithify.open(url, settings=settings, engine=InlineEngine()) as log:
        (proposed,) = log.plan()
        assert proposed.unit == NAME
        assert proposed.bytes == sum(path.stat().st_size for path in folder.glob("*.log"))
        result = log.compact()
        assert len(result.committed) == 3
        rows = {name: count for name, count in result.rows.items() if count}
        assert rows == {"rows_in": 9, "rows_out": 5, "superseded": 4}
        assert not log.plan()
        with pytest.raises(Refused, match="no history"):
            log.expire()


def test_metrics(url: str) -> None:
    clock = SystemClock()
    metrics = Metrics(clock, coordinates=True)
    seen = metered(wiring.open_dataset(url, config_type()()), metrics, clock)
    coordinator = Coordinator(seen, clock, RandomIds(), observer=metrics)
    coordinator.start(Term(seen.take_epoch(lambda taking: None)))
    worker = Worker(seen, InlineEngine(), clock, "w", observer=metrics)
    for _ in range(12):
        coordinator.tick()
        worker.tick()
    assert metrics.registry.get_sample_value("lithify_committed_total", {"dataset": url}) == 3
    assert (metrics.registry.get_sample_value("lithify_task_peak_memory_bytes", {"dataset": url}) or 0) > 1e6


def test_a_pattern_names_topics_and_not_what_was_made_of_them(tmp_path: Path, quick: None) -> None:
    for name in ("orders-0", "orders-1", "clicks-0"):
        make_log(tmp_path / name)
    pattern = f"kafka+file://{tmp_path}/orders-*"
    invoke_json("compact", f"kafka+file://{tmp_path}/orders-1")
    found = registered_for(pattern).find(pattern, Config(), WaitPolicy())
    assert found == [f"kafka+file://{tmp_path}/orders-{n}" for n in range(2)]


def test_on_s3(s3: S3, quick: None) -> None:
    """Two partitions at a URL with a space, and by a pattern."""
    bucket = s3.bucket()
    root = f"s3://{bucket}/back up/topic"
    store, key = open_store(quote(root, safe=":/"), s3.options)
    for number in range(2):
        rows = [[logs.data(n, ("a", f"{n}"), ("b", f"{n}"))] for n in range(0, 30, 10)]
        put_segments(store, f"{key}/orders-{number}", rows)
    url = "kafka+" + quote(root, safe=":/")
    options = [f"--store-option={name}={value}" for name, value in s3.options.items()]
    done = invoke_json("compact", *options, url)
    assert [one["is_compacted"] for one in done["after"]] == [True, True]
    for one in done["after"]:
        rows_now = read_rows(store, f"{key}.compacted/{one['folder']}")
        assert latest(rows_now) == latest(read_rows(store, f"{key}/{one['partition']}"))
    assert "Nothing to compact" in invoke("compact", *options, url).stdout
    config = settled({f"store_options.{name}": value for name, value in s3.options.items()})
    pattern = f"kafka+s3://{bucket}/*/topic"
    assert registered_for(pattern).find(pattern, config, WaitPolicy()) == [url]
