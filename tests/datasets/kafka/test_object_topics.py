"""Topics in a broker's bucket, through the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lithify.store.urls import open_store
from tests.cli.invoking import invoke, invoke_json
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket
from tests.datasets.kafka.folders import latest
from tests.datasets.kafka.logs import encode
from tests.fuzz.running import run, without_waiting


def metadata(policy: str) -> str:
    configs = [{"name": "cleanup.policy", "value": policy}]
    topic = {"configs": configs, "num_partitions": 4}
    return json.dumps({"topics": {"orders": {"id": "1", "topic": topic}}})


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    """Partition 3 has 200 objects of one batch, partition 0 two; partition 1 has none yet."""
    topic = tmp_path / "clusters" / "c" / "topics" / "orders"
    for partition, count in ((3, 200), (0, 2)):
        records = topic / "partitions" / f"{partition:010d}" / "records"
        records.mkdir(parents=True)
        for n in range(count):
            (records / f"{n:020d}.batch").write_bytes(encode(logs.data(0, ("k", str(n)))))
    empty = topic / "partitions" / f"{1:010d}"
    empty.mkdir()
    (empty / "watermark.json").write_text("{}")
    (tmp_path / "clusters" / "c" / "meta.json").write_text(metadata("compact"))
    return topic


def files(topic: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in topic.parents[3].rglob("*") if path.is_file()}


def test_a_plan_says_what_many_small_objects_cost(topic: Path) -> None:
    before = files(topic)
    found = invoke_json("plan", f"kafka+file://{topic}")
    assert [one["partition"] for one in found["partitions"]] == ["orders-0", "orders-3"]
    reasons = {one["spec"]["partition"]: one["reason"] for one in found["proposals"]}
    assert "orders-3, offsets 0 to 199" in reasons["orders-3"]
    assert "199 objects where 1 would do" in reasons["orders-3"]
    assert len(invoke_json("inspect", "segments", f"kafka+file://{topic}")["segments"]) == 202
    assert files(topic) == before


def test_a_window(topic: Path) -> None:
    """From plan to garbage, in place; what Lithify keeps lies out of the broker's way."""
    url, store = f"kafka+file://{topic}", open_store(str(topic))[0]
    bucket = Bucket(store, str(topic.parents[3]).strip("/"))
    records = topic / "partitions" / f"{3:010d}" / "records"
    newest = (records / f"{199:020d}.batch").read_bytes()
    with without_waiting():
        done = invoke_json("compact", "--quiet-period", "0s", url)
        assert {one["partition"]: one["new_segments"] for one in done["after"]} == {
            "orders-0": 2,
            "orders-3": 2,
        }
        assert sorted(path.name for path in records.glob("*.batch")) == [f"{n:020d}.batch" for n in (0, 199)]
        assert (records / f"{199:020d}.batch").read_bytes() == newest
        assert [row[3] for row in latest(bucket.rows()).values()] == [b"1"]
        assert "Nothing to compact" in invoke("compact", "--quiet-period", "0s", url).stdout
    assert not (topic.parent / "orders.compacted").exists()
    assert (topic.parents[1] / "lithify" / "orders" / "_lithify").is_dir()
    assert all(one["is_compacted"] for one in invoke_json("status", url)["partitions"])
    before = {p: data for p, data in files(topic).items() if p.is_relative_to(topic)}
    assert invoke_json("gc", "--delete", "--min-age", "0", url)["deleted"]["work"] > 0
    assert {p: data for p, data in files(topic).items() if p.is_relative_to(topic)} == before
    findings = json.loads(invoke("doctor", "--json", url).stdout)
    assert "2 partitions, 4 segments" in next(f for f in findings if f["check"] == "log")["says"]


def test_a_topic_that_is_no_map_is_looked_at_and_never_changed(topic: Path) -> None:
    (topic.parents[1] / "meta.json").write_text(metadata("delete"))
    before, url = files(topic), f"kafka+file://{topic}"
    for command in ("compact", "run", "coordinator"):
        refused = run([command, url])
        assert refused.exit_code == 2, command
        assert "cleanup.policy delete" in refused.stderr
    assert "cleanup.policy delete" in invoke_json("plan", url)["notes"][-1]
    (found,) = [f for f in json.loads(invoke("doctor", "--json", url).stdout) if f["check"] == "log"]
    assert found["severity"] == "warning"
    assert invoke_json("gc", "--delete", url)["bytes_deleted"] == 0
    assert files(topic) == before


def findings_of(topic: Path, check: str, *settings: str) -> list[dict[str, str]]:
    asked = [one for setting in settings for one in ("--set", setting)]
    found = json.loads(invoke("doctor", "--json", "--read-only", *asked, f"kafka+file://{topic}").stdout)
    return [one for one in found if one["check"] == check]


@pytest.mark.parametrize(
    ("build", "severity", "says"),
    [
        (None, "warning", "the broker's build is not configured; builds before 0.7.0-pre.1 skip records"),
        ("0.6.0", "problem", "a broker of build 0.6.0 skips records"),
        ("newest", "problem", "'newest' is not a version of the broker"),
        ("0.7.0-pre.2", "ok", "build 0.7.0-pre.2 reads merged objects from every offset"),
    ],
)
def test_the_doctor_judges_the_build_of_the_broker(
    topic: Path, build: str | None, severity: str, says: str
) -> None:
    """In whichever way the topic is compacted: what an old one skips are rows of merged objects."""
    settings = [] if build is None else [f"kafka.broker_build={build}"]
    for mode in ([], ["kafka.copy_to=orders.v2"], ["kafka.live=true"]):
        if mode == ["kafka.live=true"] and build is None:
            continue
        (found,) = findings_of(topic, "broker", *settings, *mode)
        assert found["severity"] == severity, mode
        assert says in found["says"]
        assert (severity == "ok") is not bool(found["do"])
    (log,) = findings_of(topic, "log", "kafka.live=true", *settings)
    assert log["severity"] == ("ok" if severity == "ok" else "problem")
    assert "folder of segments" not in log["do"]


def test_what_is_refused(topic: Path, tmp_path: Path) -> None:
    url = f"kafka+file://{topic}"
    for command in ("plan", "compact", "gc"):
        refused = invoke(command, "--output", tmp_path / "out", url)
        assert refused.exit_code == 2
        assert "compacted in place" in " ".join(refused.stderr.split())
    (topic.parents[1] / "meta.json").write_text(json.dumps({"topics": {}}))
    assert "does not know the topic orders" in " ".join(invoke("compact", url).stderr.split())
    (topic.parents[1] / "meta.json").write_text("{")
    assert "does not decode" in " ".join(invoke("compact", url).stderr.split())
    (topic.parents[1] / "meta.json").unlink()
    assert "there is no broker metadata at" in " ".join(invoke("compact", url).stderr.split())


def test_a_backup_whose_path_looks_like_a_brokers(tmp_path: Path) -> None:
    folder = tmp_path / "clusters" / "c" / "topics" / "orders-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(encode(logs.data(0, ("k", "1"))))
    found = invoke_json("plan", f"kafka+file://{folder}")
    assert [one["partition"] for one in found["partitions"]] == ["orders-0"]
    assert "nothing is settled" in found["notes"][0]
    assert not findings_of(folder, "broker")
