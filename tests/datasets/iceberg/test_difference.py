"""Files that no name names, and the set that names are held in."""

from __future__ import annotations

import posixpath
import random
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lithify.datasets.iceberg.deletes import key_set
from lithify.datasets.iceberg.deletes.key_set import KeySet
from lithify.datasets.iceberg.maintenance import external_set_difference
from lithify.datasets.iceberg.maintenance.external_set_difference import Difference, File


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_as_sets_say(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_set_difference, "AT_ONCE", at_once)
    rng = random.Random(at_once)
    for _ in range(3):
        keys = [
            f"{rng.choice('xyz')}/{rng.randrange(60)}{rng.choice(['', 'ä', chr(0xDC80)])}" for _ in range(150)
        ]
        files = {File(key, rng.randrange(1 << 40), rng.randrange(1 << 41)) for key in keys[:100]}
        named = set(rng.sample(keys, 50))
        lasts = {posixpath.basename(key) for key in rng.sample(keys, 5)}
        with Difference() as compared:
            for key in named:
                compared.add_name(key)
            for last in lasts:
                compared.add_last_part(last)
            for file in files:
                compared.add_file(file.key, file)
            expected = {f for f in files if f.key not in named and posixpath.basename(f.key) not in lasts}
            assert expected
            assert set(compared.unnamed()) == expected
            assert set(compared.unnamed()) == expected, "as often as it is asked"


def test_a_name_that_comes_after_the_files_counts() -> None:
    with Difference() as compared:
        compared.add_file("a/b", File("a/b", 1, 2))
        assert list(compared.unnamed()) == [File("a/b", 1, 2)]
        compared.add_name("a/b")
        assert list(compared.unnamed()) == []


def test_nothing_stays_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Difference() as compared:
        compared.add_file("a/b", File("a/b", 1, 2))
        assert [path for path in tmp_path.rglob("files") if path.is_file()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("max_sorted", [1, 8, 1 << 20])
@pytest.mark.parametrize("max_recent", [1, 3, 1000])
def test_a_set_of_hashes_has_what_was_added(
    max_recent: int, max_sorted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_set, "MAX_SORTED", max_sorted)
    rng = random.Random(max_recent)
    found, added = KeySet(max_recent), set[str]()
    for _ in range(300):
        key = f"{rng.randrange(200)}"
        assert (key in found) == (key in added)
        if rng.random() < 0.7:
            found.add(key)
            added.add(key)
    keys = [f"{n}" for n in range(250)]
    in_one_go = found.has(np.array([hash(key) for key in keys], np.int64))
    assert in_one_go.tolist() == [key in added for key in keys]


def test_a_key_in_a_set_takes_few_bytes() -> None:
    keys, found = 4 * key_set.MAX_RECENT, KeySet()
    tracemalloc.start()
    for number in range(keys):
        found.add(f"s3://bucket/warehouse/db/events/data/{number:08d}.parquet")
    taken_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken_bytes <= 9 * keys
