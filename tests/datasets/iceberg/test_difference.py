"""Files that no name names, compared in buckets."""

from __future__ import annotations

import posixpath
import random
import tempfile
from pathlib import Path

import pytest

from lithify.datasets.iceberg import difference
from lithify.datasets.iceberg.difference import Difference, File


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 20])
def test_as_sets_say(buffer_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difference, "_BUFFER_BYTES", buffer_bytes)
    rng = random.Random(buffer_bytes)
    for buckets in (1, 7, 64):
        keys = [
            f"{rng.choice('xyz')}/{rng.randrange(60)}{rng.choice(['', 'ä', chr(0xDC80)])}" for _ in range(150)
        ]
        files = {File(key, rng.randrange(1 << 40), rng.randrange(1 << 41)) for key in keys[:100]}
        named = set(rng.sample(keys, 50))
        lasts = {posixpath.basename(key) for key in rng.sample(keys, 5)}
        with Difference(buckets) as compared:
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


def test_nothing_stays_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(difference, "_BUFFER_BYTES", 1)
    with Difference() as compared:
        compared.add_file("a/b", File("a/b", 1, 2))
        assert [path for path in tmp_path.rglob("files-*") if path.is_file()]
    assert list(tmp_path.iterdir()) == []
