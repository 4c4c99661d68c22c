"""The datasets of `lithify demo`: each is worth a compaction, which keeps its rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lithify
from lithify.base.errors import Refused
from lithify.datasets.registry import Registered, all_registered
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke

WITH_SAMPLES = [kind for kind in all_registered() if kind.sample]


@pytest.mark.parametrize("kind", WITH_SAMPLES, ids=lambda kind: kind.noun)
def test_a_sample_is_compacted_and_keeps_its_rows(kind: Registered, tmp_path: Path) -> None:
    sample = kind.make_sample(tmp_path)
    assert len(sample.rows) > 1000
    assert sample.read() == sample.rows
    cost = None if sample.query_cost is None else sample.query_cost()
    with lithify.open(sample.url, settings=sample.settings, engine=InlineEngine()) as dataset:
        assert dataset.plan().shown.verdict.count(" to ") == 2
        assert "<pre" in dataset.plan()._repr_html_()
        assert dataset.compact().committed
    assert sample.read() == sample.rows
    if sample.query_cost is not None:
        assert sample.query_cost() != cost


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, *_ = WITH_SAMPLES
    monkeypatch.setitem(sys.modules, "slatedb", None)
    with pytest.raises(Refused, match="pip install slatedb"):
        database.make_sample(tmp_path)


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    result = invoke("demo", tmp_path)
    assert result.exit_code == 2
    assert "name a new folder" in result.stderr
