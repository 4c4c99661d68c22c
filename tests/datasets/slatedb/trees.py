"""Made-up trees, manifests and ledgers: planning and committing need no data behind them."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from lithify.base.ids import RandomIds, Ulid
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.model import (
    DrainSpec,
    KeyRange,
    Manifest,
    SortedRun,
    Spec,
    Sst,
    SstInfo,
    TieredSpec,
    Tree,
    View,
)
from lithify.protocol.model import AssignedWorker, Compaction, CompactionState

FIRST_MS = time.time_ns() // 1_000_000 - 3_600_000
"""All SSTs are made in the hour before the tests; no client accepts ids from the future."""
MB = 1_000_000
EMPTY = Manifest(initialized=True, writer_epoch=1, compactor_epoch=1, root=Tree())


class Mint:
    """Makes SSTs and compactions whose ids ascend in the order they are made."""

    def __init__(self, seed: int = 0) -> None:
        self._ids = RandomIds(random.Random(seed))
        self._ms = FIRST_MS

    def ulid(self) -> Ulid:
        self._ms += 1
        return self._ids.ulid(self._ms)

    def sst(self, size: int = MB, first: bytes = b"a", last: bytes | None = b"z") -> Sst:
        """An SST of `size` bytes up to the end of its index."""
        index_len = min(size, 50)
        offset = size - index_len
        return Sst(self.ulid(), SstInfo(first, last, offset, index_len, offset, 0, 0, 0))

    def view(self, sst: Sst | None = None, visible: KeyRange | None = None) -> View:
        """A view with an id of its own when it shows only a part."""
        sst = sst if sst is not None else self.sst()
        return View(self.ulid() if visible is not None else sst.id, sst, visible)

    def tree(
        self, l0: int | Sequence[int], runs: Mapping[int, int] | None = None, prefix: bytes = b""
    ) -> Tree:
        """A tree of so many L0 SSTs of 1 MB (or of these sizes, newest first) and runs id -> size."""
        sizes = [MB] * l0 if isinstance(l0, int) else l0
        last = prefix + b"z"
        made = [
            SortedRun(i, (self.view(self.sst(size, prefix + b"a", last)),))
            for i, size in sorted((runs or {}).items())
        ]
        views = [self.view(self.sst(size, prefix + b"a", last)) for size in reversed(sizes)]
        return Tree(prefix, None, tuple(reversed(views)), tuple(reversed(made)))

    def compaction(
        self, spec: Spec, state: CompactionState = CompactionState.SUBMITTED, outputs: Sequence[Sst] = ()
    ) -> SlateCompaction:
        """A compaction; a running one has a worker that is alive."""
        worker = (
            AssignedWorker("another", time.time_ns() // 1_000_000)
            if state is CompactionState.RUNNING
            else None
        )
        return Compaction(self.ulid(), spec, state, tuple(outputs), worker)


def manifest_of(*trees: Tree) -> Manifest:
    """A manifest of a root tree, or of segments."""
    if len(trees) == 1 and not trees[0].prefix:
        return replace(EMPTY, root=trees[0])
    return replace(EMPTY, segments=tuple(sorted(trees, key=lambda tree: tree.prefix)))


def tiered(tree: Tree, l0: slice | None, runs: Sequence[int], destination: int) -> TieredSpec:
    """A merge of a slice of the tree's L0 and of these runs."""
    views = tree.l0[l0] if l0 is not None else ()
    return TieredSpec(tree.prefix, tuple(view.id for view in views), tuple(runs), destination)


def drain(tree: Tree, l0: slice | None, runs: Sequence[int]) -> DrainSpec:
    """A drain of a slice of the tree's L0 and of these runs."""
    views = tree.l0[l0] if l0 is not None else ()
    return DrainSpec(tree.prefix, tuple(view.id for view in views), tuple(runs))


# Random ones

SIZES = st.one_of(st.integers(0, 300), st.integers(1, 40).map(lambda n: n * MB), st.integers(0, 10**13))
SUFFIXES = st.binary(min_size=1, max_size=10)


@st.composite
def views(draw: st.DrawFn, mint: Mint, prefix: bytes) -> View:
    """A view of keys under `prefix`; some show only a part of their SST."""
    first, last = sorted((prefix + draw(SUFFIXES), prefix + draw(SUFFIXES)))
    sst = mint.sst(draw(SIZES), first, last)
    if draw(st.integers(0, 2)):
        return mint.view(sst)
    shown = KeyRange(
        draw(st.one_of(st.none(), SUFFIXES.map(prefix.__add__))),
        draw(st.one_of(st.none(), SUFFIXES.map(prefix.__add__))),
    )
    shown = replace(shown, end_inclusive=shown.end is not None and draw(st.booleans()))
    view = mint.view(sst, shown)
    return mint.view(sst) if view.effective_range.is_empty else view


@st.composite
def trees(draw: st.DrawFn, mint: Mint, prefix: bytes, run_ids: Sequence[int], max_l0: int = 12) -> Tree:
    """A tree with these run ids."""
    runs = []
    for run_id in sorted(run_ids):
        made = draw(st.lists(views(mint, prefix), max_size=3))
        runs.append(SortedRun(run_id, in_key_order(made)))
    l0 = draw(st.lists(views(mint, prefix), max_size=max_l0))
    return Tree(prefix, None, tuple(reversed(l0)), tuple(reversed(runs)))


def in_key_order(made: Sequence[View]) -> tuple[View, ...]:
    """As many of the views as fit one after another."""
    kept: list[View] = []
    for view in sorted(made, key=lambda v: v.effective_range.start or b""):
        if not kept or (kept[-1].effective_range.end or b"") < (view.effective_range.start or b""):
            kept.append(view)
    return tuple(kept)


@st.composite
def manifests(draw: st.DrawFn, max_l0: int = 12) -> tuple[Mint, Manifest]:
    """A manifest with one tree, or with up to three segments of one-byte prefixes."""
    mint = Mint(draw(st.integers(0, 1 << 30)))
    ids = list(draw(st.permutations(range(18))))
    prefixes = draw(st.sampled_from([(b"",), (b"k",), (b"a", b"b"), (b"a", b"b", b"c")]))
    made = []
    for prefix in prefixes:
        count = draw(st.integers(0, 6))
        own, ids = ids[:count], ids[count:]
        made.append(draw(trees(mint, prefix, own, max_l0)))
    return mint, manifest_of(*made)
