"""Topics in a broker's bucket: planned and shown, never written to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoking import invoke, invoke_json
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import encode
from tests.fuzz.running import run


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
    (tmp_path / "clusters" / "c" / "meta.json").write_text("{}")
    return topic


def test_a_plan_says_what_many_small_objects_cost(topic: Path) -> None:
    found = invoke_json("plan", f"kafka+file://{topic}")
    assert [one["partition"] for one in found["partitions"]] == ["orders-0", "orders-3"]
    reasons = {one["spec"]["partition"]: one["reason"] for one in found["proposals"]}
    assert "partition 3, offsets 0 to 199" in reasons["orders-3"]
    assert "199 objects where 1 would do" in reasons["orders-3"]
    assert "only looked at so far" in found["notes"][-1]
    assert len(invoke_json("inspect", "segments", f"kafka+file://{topic}")["segments"]) == 202


def test_nothing_is_written(topic: Path) -> None:
    before = sorted(path for path in topic.parents[3].rglob("*") if path.is_file())
    url = f"kafka+file://{topic}"
    for command in ("compact", "run", "coordinator"):
        refused = run([command, url])
        assert refused.exit_code == 2, command
        assert "only looked at so far" in refused.stderr
    result = invoke("doctor", "--json", url)
    (found,) = [f for f in json.loads(result.stdout) if f["check"] == "log"]
    assert found["severity"] == "warning"
    assert "2 partitions, 202 segments" in found["says"]
    assert invoke_json("gc", "--delete", url)["bytes_deleted"] == 0
    assert sorted(path for path in topic.parents[3].rglob("*") if path.is_file()) == before


def test_a_backup_whose_path_looks_like_a_brokers(tmp_path: Path) -> None:
    folder = tmp_path / "clusters" / "c" / "topics" / "orders-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(encode(logs.data(0, ("k", "1"))))
    found = invoke_json("plan", f"kafka+file://{folder}")
    assert [one["partition"] for one in found["partitions"]] == ["orders-0"]
    assert "nothing is settled" in found["notes"][0]
