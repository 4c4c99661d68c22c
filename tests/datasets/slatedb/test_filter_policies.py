"""Filters of other policies than the one that Lithify makes: such databases are left alone, with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction import split
from lithify.datasets.slatedb.format.filter import NamedFilter, decode_names, encode_filters
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db

ROWS = 1200


def fill(path: Path, **options: int) -> None:
    with open_db(path, settings={"min_filter_keys": 1}, **options) as database:  # type: ignore[arg-type]
        for n in range(4):
            database.write_batch([Put(b"k%06d" % k, b"%d" % n) for k in range(n, ROWS, 2)])
            database.flush()


@pytest.mark.parametrize("is_read_at_once", [True, False])
def test_a_policy_that_lithify_cannot_make(
    tmp_path: Path, is_read_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SST after SST, a client with that policy would lose its filters: `_bf` is another one's name."""
    path = tmp_path / "db"
    fill(path, filter_prefix_len=3)
    before = {p.name: p.read_bytes() for p in (path / "compacted").iterdir()}
    if not is_read_at_once:
        monkeypatch.setattr(split, "SMALL_BYTES", 0)
    result = compact(dataset_at(path))
    assert result.committed == ()
    assert "filters of the policy '_bf:p=fixed-3', which Lithify cannot write" in result.failures[0].reason
    assert {p.name: p.read_bytes() for p in (path / "compacted").iterdir()} == before


def test_the_default_policy_and_none(tmp_path: Path) -> None:
    for name, options in (("default", {}), ("other bits", {"filter_bits_per_key": 20}), ("none", {})):
        path = tmp_path / name
        fill(path, **({"filter_bits_per_key": 0} if name == "none" else options))
        assert len(compact(dataset_at(path)).committed) == 1


def test_a_filter_that_cannot_be_read_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "db"
    fill(path)
    dataset = dataset_at(path)
    newest = dataset.snapshot().root.l0[0].sst
    file = path / "compacted" / f"{newest.id}.sst"
    data = bytearray(file.read_bytes())
    data[newest.info.filter_offset + 8] ^= 1
    file.write_bytes(data)
    assert len(compact(dataset).committed) == 1
    with open_db(path) as database:
        keys = [b"k%06d" % k for k in range(ROWS)]
        assert database.get_many(keys) == dict(database.scan())


def test_names_of_filters() -> None:
    block = encode_filters([NamedFilter("_bf", b"data"), NamedFilter("é:p=x", b"")])
    assert decode_names(block, "x") == ["_bf", "é:p=x"]
    for broken in (
        b"",
        block[:-1],
        block + b"\0",
        b"\xff\xff" + block[2:],
        b"\0\1\0\3\xff\xff\xff" + bytes(8),
    ):
        with pytest.raises(CorruptObject, match="not a filter block"):
            decode_names(broken, "x")
