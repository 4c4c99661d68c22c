"""The measurements of keyed logs, with hardly any data."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from benchmarks.logs import judge, measure, print_tables
from benchmarks.logs_data import DEAD, PARTITION, made
from rich.console import Console

from lithify.datasets.kafka.format.record_batches import decode
from tests.datasets.kafka.logs import column


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_log_is_what_it_should_be(tmp_path: Path, codec: str) -> None:
    folder = made(tmp_path, 1230, 40, 80, codec, 500)
    segments = sorted((folder / PARTITION).iterdir())
    assert [path.name for path in segments] == [f"{base:020d}.log" for base in (500, 1000, 1500)]
    found = decode(b"".join(path.read_bytes() for path in segments), "log")
    assert column(found.records, "offset") == list(range(500, 1730))
    newest = {found.key(number): number + 500 for number in range(1230)}
    assert len(newest) == 40
    dead = np.fromfile(folder / DEAD, "<i8")
    assert sorted({*range(500, 1730)} - set(newest.values())) == list(dead)
    assert {len(found.key(n) or b"") + len(found.value(n) or b"") for n in (0, 63, 64, 1229)} == {92}


@pytest.mark.whole
def test_everything_is_measured(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    results = measure(tmp_path, 0.0002, console)
    assert results.rewrite["none"]["Lithify"]["crc"] == results.rewrite["none"]["Kafka"]["crc"]
    assert results.round["Lithify"]["records"] == 10_000
    assert set(results.again["read"]) == {"index", "match", "rewrite"}
    assert results.again["read"]["index"] < 0.15 * results.again["log_bytes"]
    print_tables(console, results)
    assert results.reads["before"]["rows"] == 400
    assert len(results.targets()) == 8


def test_sides_that_come_to_different_things_are_not_compared() -> None:
    judge([{"crc": 1}, {"crc": 1}], "crc")
    with pytest.raises(ValueError, match="not all come to the same crc"):
        judge([{"crc": 1}, {"crc": 2}], "crc")
