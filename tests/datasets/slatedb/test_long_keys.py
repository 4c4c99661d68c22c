"""Long keys: what travels with a task and its result does not grow with them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lithify.datasets.slatedb.compaction import split
from lithify.testing.engine import InlineEngine
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db

KIB = 1 << 10


class MeasuringEngine(InlineEngine):
    """Remembers the size of the largest argument."""

    def requests_bytes(self) -> int:
        return max(len(pickle.dumps(call.argument)) for call in self.submitted)


@pytest.mark.parametrize(
    ("key_bytes", "flushes", "max_sst_size"),
    [(64 * KIB, 40, 256 << 20), (1024 * KIB, 6, 256 << 20), (64 * KIB, 20, 300 * KIB), (70 * KIB, 12, 1)],
)
@pytest.mark.parametrize("shared", [0, 2 * KIB])
def test_keys_of_any_length(
    tmp_path: Path,
    key_bytes: int,
    flushes: int,
    max_sst_size: int,
    shared: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys that differ early, and keys that differ late, in one range and in several with many outputs."""
    path = tmp_path / "db"
    content = {
        (b"p" * shared + b"%04d-" % n).ljust(key_bytes, b"k") + b"%d" % n: b"%d" % n
        for n in range(2 * flushes)
    }
    keys = list(content)
    with open_db(path, settings={"l0_max_ssts": 100}) as database:
        for flush in range(flushes):
            batch = keys[flush::flushes]
            database.write_batch([Put(key, content[key]) for key in batch])
            database.flush()
    if max_sst_size < 256 << 20:
        monkeypatch.setattr(split, "SMALL_BYTES", 0)
    engine = MeasuringEngine()
    result = compact(dataset_at(path, max_sst_size=max_sst_size), engine=engine)
    assert result.failures == ()
    assert len(result.committed) == 1
    assert engine.requests_bytes() < 512 * KIB
    with open_db(path) as database:
        assert database.get_many(keys) == content
        assert dict(database.scan()) == content
