"""A clone of several parts of one database: each part's views keep their ids, so one id stands for
several views. The official compactor takes one of each and loses the others' rows; nothing here may."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lithify.datasets.slatedb.compaction.transform import apply_compaction
from lithify.datasets.slatedb.compaction.validate import validate
from lithify.datasets.slatedb.model import KeyRange, Manifest, TieredSpec, Tree, View
from lithify.datasets.slatedb.planning.plan import TieredPolicy, propose, visible_size_bytes
from lithify.protocol.model import CompactionState, Ledger
from tests.compacting import check_state_files, compact, dataset_at
from tests.datasets.slatedb.collecting import Model
from tests.datasets.slatedb.trees import Mint, manifest_of
from tests.judge.official import Admin, CloneSource, open_db

WITHOUT_LOG = {"wal_enabled": False}
PARTS = (b"k020", b"k040")


def reunion(folder: Path, batches: int) -> Model:
    """`folder/whole`: a clone of clones of three parts of `folder/source`."""
    model: Model = {}
    with open_db(folder / "source", settings=WITHOUT_LOG) as database:
        for batch in range(batches):
            for n in range(batch, 60, batch + 1):
                database.put(b"k%03d" % n, b"%d of %d" % (batch, n))
                model[b"k%03d" % n] = b"%d of %d" % (batch, n)
            database.flush()
    bounds = (None, *PARTS, None)
    parts = []
    for i, (start, end) in enumerate(pairwise(bounds)):
        parts.append(CloneSource(folder / f"part{i}"))
        Admin(folder / f"part{i}").clone_from(CloneSource(folder / "source", start=start, end=end))
        with open_db(folder / f"part{i}", settings=WITHOUT_LOG):
            pass
    Admin(folder / "whole").clone_from(*parts)
    return model


@pytest.mark.parametrize(
    ("full", "policy"),
    [
        (True, TieredPolicy()),
        (False, TieredPolicy()),
        (False, TieredPolicy(min_compaction_sources=2, max_compaction_sources=2)),
        (False, TieredPolicy(min_compaction_sources=3, max_compaction_sources=4)),
    ],
)
def test_every_row_survives_while_the_writer_goes_on(
    tmp_path: Path, full: bool, policy: TieredPolicy
) -> None:
    model = reunion(tmp_path, 5)
    path = tmp_path / "whole"
    ids = [view.id for view in dataset_at(path).snapshot().root.l0]
    assert len(ids) == 15
    assert len(set(ids)) == 5
    with open_db(path, settings=WITHOUT_LOG) as database:
        assert dict(database.scan()) == model
        for n in (3, 23, 43):
            result = compact(dataset_at(path, policy=policy), full=full)
            assert result.committed or n > 3
            assert not result.refused
            assert not result.failures
            for key, value in ((b"k%03d" % n, b"new"), (b"k%03d" % (n + 1), b"newer")):
                database.put(key, value)
                database.flush()
                model[key] = value
            assert dict(database.scan()) == model
            assert database.get_many(model) == model
    check_state_files(dataset_at(path), path)
    with open_db(path, settings=WITHOUT_LOG) as database:
        assert dict(database.scan()) == model


def parts_of(mint: Mint, count: int) -> Manifest:
    ssts = [mint.sst() for _ in range(count)]
    views = [
        View(sst.id, sst, visible)
        for visible in (KeyRange(None, b"m"), KeyRange(b"m"))
        for sst in reversed(ssts)
    ]
    return manifest_of(Tree(b"", None, tuple(views)))


@pytest.mark.parametrize("most", range(2, 9))
@pytest.mark.parametrize("count", range(1, 6))
def test_no_pick_leaves_a_view_below_the_marker_it_will_set(count: int, most: int) -> None:
    mint = Mint()
    manifest = parts_of(mint, count)
    policy = TieredPolicy(min_compaction_sources=2, max_compaction_sources=most)
    (proposal,) = propose(manifest, Ledger(), policy).proposals
    spec = proposal.spec
    assert isinstance(spec, TieredSpec)
    assert proposal.cost_bytes == sum(map(visible_size_bytes, manifest.root.l0[-len(spec.l0_view_ids) :]))
    compaction = mint.compaction(spec)
    assert validate(compaction, manifest, Ledger()) is None
    assert validate(replace(compaction, state=CompactionState.COMPACTED), manifest, Ledger()) is None
    after = apply_compaction(manifest, spec).root
    marker = next(i for i, view in enumerate(manifest.root.l0) if view.id == after.last_compacted_l0)
    assert after.l0 == manifest.root.l0[:marker]  # what the writer keeps
