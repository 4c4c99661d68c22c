"""Filters of outputs: the same as in the inputs, or as the settings say. The official client writes the same
rows with the same policy at once; its filter is the one to reproduce."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.slatedb.checks import check_database
from lithify.datasets.slatedb.compaction import split
from lithify.datasets.slatedb.compaction.task import FilterRules
from lithify.datasets.slatedb.format.filter import NamedFilter, decode_filters, encode_filters
from lithify.datasets.slatedb.format.policies import policy_of
from lithify.datasets.slatedb.format.sst import seal, unseal
from lithify.datasets.slatedb.model import View
from lithify.protocol.finding import Severity
from lithify.service.status import status
from lithify.testing import ManualClock
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db

ROWS = 1200
FIXED_3 = FilterRules(prefix_lens={"fixed-3": 3})


def key_of(n: int) -> bytes:
    return b"%04d-%d" % (n // 3, n) if n % 7 else b"%02d" % (n % 100)


def fill(path: Path, flushes: int = 4, **options: Any) -> None:
    with open_db(path, settings={"min_filter_keys": 1}, **options) as database:
        for flush in range(flushes):
            database.write_batch([Put(key_of(n), b"%d" % n) for n in range(flush, ROWS, flushes)])
            database.flush()


def filters_in(path: Path) -> Iterator[NamedFilter]:
    """The filters of the only SST."""
    (view,) = views(path)
    info = view.sst.info
    if info.filter_len:
        data = (path / "compacted" / f"{view.sst.id}.sst").read_bytes()
        stored = data[info.filter_offset : info.filter_offset + info.filter_len]
        yield from decode_filters(unseal(stored, info.compression, "filter"), "filter")


def views(path: Path) -> list[View]:
    return list(dataset_at(path).snapshot().root.views())


@pytest.mark.parametrize("is_read_at_once", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("_bf", {}),
        ("_bf", {"filter_bits_per_key": 20}),
        ("_bf", {"filter_bits_per_key": 7}),
        ("_bf:p=fixed-3", {"filter_prefix_len": 3}),
        ("_bf:p=fixed-3:wh=0", {"filter_prefix_len": 3, "filter_whole_keys": False}),
        ("_bf:wh=0", {"filter_whole_keys": False, "filter_bits_per_key": 10}),
    ],
)
def test_outputs_have_the_filters_of_the_inputs(
    tmp_path: Path, name: str, options: dict[str, Any], is_read_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "db", **options)
    fill(tmp_path / "at once", flushes=1, **options)
    if not is_read_at_once:
        monkeypatch.setattr(split, "SMALL_BYTES", 0)
    dataset = dataset_at(tmp_path / "db", min_filter_keys=1, filter_rules=FIXED_3)
    assert len(compact(dataset).committed) == 1
    (ours,) = filters_in(tmp_path / "db")
    assert ours.name == name
    assert [ours] == list(filters_in(tmp_path / "at once"))
    with open_db(tmp_path / "db", **options) as database:
        content = {key_of(n): b"%d" % n for n in range(ROWS)}
        assert database.get_many(content) == dict(database.scan())


@pytest.mark.parametrize("is_read_at_once", [True, False])
@pytest.mark.parametrize(
    ("lens", "reason"),
    [
        ({}, r"set slatedb\.filter_prefixes\.fixed-3=N"),
        ({"fixed-3": 2}, r"does not have the prefix .* correct slatedb\.filter_prefixes"),
        ({"fixed": 3}, r"only its clients know the prefixes of 'fixed-3'"),
    ],
)
def test_prefixes_that_nobody_knows_or_told_wrong(
    tmp_path: Path,
    lens: dict[str, int],
    reason: str,
    is_read_at_once: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SST after SST, the clients would lose their filters, or miss rows."""
    path = tmp_path / "db"
    fill(path, filter_prefix_len=3)
    before = {p.name: p.read_bytes() for p in (path / "compacted").iterdir()}
    if not is_read_at_once:
        monkeypatch.setattr(split, "SMALL_BYTES", 0)
    result = compact(dataset_at(path, filter_rules=FilterRules(prefix_lens=lens)))
    assert result.committed == ()
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(result.failures[0].reason)
    assert {p.name: p.read_bytes() for p in (path / "compacted").iterdir()} == before
    dataset = dataset_at(path, filter_rules=FilterRules(prefix_lens=lens))
    clock = ManualClock(1_900_000_000_000)
    findings = check_database(dataset, lambda one: status(one, clock, 30_000), clock.now_ms())
    (found,) = (one for one in findings if one.check == "filters")
    assert found.severity is Severity.PROBLEM


@pytest.mark.parametrize(("names", "bits"), [((), 10), (("_bf",), 16), (("_bf", "_bf:p=fixed-3:wh=0"), 10)])
def test_settings_decide(tmp_path: Path, names: tuple[str, ...], bits: int) -> None:
    path = tmp_path / "db"
    fill(path, filter_prefix_len=3)
    rules = FilterRules(names, bits, {"fixed-3": 3})
    assert len(compact(dataset_at(path, min_filter_keys=1, filter_rules=rules)).committed) == 1
    found = list(filters_in(path))
    assert tuple(one.name for one in found) == names
    sst = views(path)[0].sst
    if names == ("_bf",):
        fill(tmp_path / "at once", flushes=1, filter_bits_per_key=bits)
        assert found == list(filters_in(tmp_path / "at once"))
    assert bool(sst.info.filter_len) == bool(names)


def test_names_of_policies() -> None:
    lens = {"a": 1, "a:wh=0": 2, "p=:\n": 3}
    assert policy_of("_bf:p=p=:\n", lens).prefix_len == 3
    assert not policy_of("_bf:wh=0", {}).has_keys
    for name in ("minmax", "_bf2", "_bf:p=", "_bf:wh=1", "", "_bf:p=b", "_bf:p=a:wh=0"):
        with pytest.raises(Refused):
            policy_of(name, lens)
    with pytest.raises(Refused, match="cannot be written"):
        dataset_at("memory://", filter_rules=FilterRules(("minmax",)))


def test_a_hostile_number_of_probes_makes_no_huge_filter(tmp_path: Path) -> None:
    path = tmp_path / "db"
    fill(path)
    dataset = dataset_at(path, min_filter_keys=1)
    newest = dataset.snapshot().root.l0[0].sst
    file = path / "compacted" / f"{newest.id}.sst"
    data = bytearray(file.read_bytes())
    start, end = newest.info.filter_offset, newest.info.filter_offset + newest.info.filter_len
    (one,) = decode_filters(unseal(bytes(data[start:end]), newest.info.compression, "filter"), "filter")
    data[start:end] = seal(
        encode_filters([NamedFilter(one.name, b"\xff\xff" + one.data[2:])]), newest.info.compression
    )
    file.write_bytes(data)
    assert len(compact(dataset).committed) == 1
    fill(tmp_path / "at once", flushes=1)
    assert list(filters_in(path)) == list(filters_in(tmp_path / "at once"))


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
        keys = [key_of(n) for n in range(ROWS)]
        assert database.get_many(keys) == dict(database.scan())


def test_filters_of_a_block() -> None:
    there = [NamedFilter("_bf", b"data"), NamedFilter("é:p=x", b"")]
    block = encode_filters(there)
    assert decode_filters(block, "x") == there
    for broken in (
        b"",
        block[:-1],
        block + b"\0",
        b"\xff\xff" + block[2:],
        b"\0\1\0\3\xff\xff\xff" + bytes(8),
    ):
        with pytest.raises(CorruptObject, match="not a filter block"):
            decode_filters(broken, "x")
