"""The shape of an LSM tree in numbers, to be compared before and after a compaction.

- *read amplification*: how many sorted sequences a point read may have to read, L0 SSTs plus sorted runs, in
  the tree that has most.
- *space amplification*: data bytes of all sequences divided by those of the oldest run of each tree, which
  holds nothing superseded. Undefined while a tree has no run.

Sizes are computed as SlateDB's scheduler does (data, filter and index of an SST).
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.datasets.slatedb.model import Manifest, Tree


@dataclass(frozen=True, slots=True)
class RunShape:
    """One sorted run."""

    id: int
    ssts: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TreeShape:
    """One tree: the root (empty prefix) or a segment."""

    prefix: bytes
    l0_ssts: int
    l0_bytes: int
    runs: tuple[RunShape, ...]

    @property
    def size_bytes(self) -> int:
        return self.l0_bytes + sum(run.size_bytes for run in self.runs)

    @property
    def sequences(self) -> int:
        return self.l0_ssts + sum(1 for run in self.runs if run.ssts)


@dataclass(frozen=True, slots=True)
class Shape:
    """All trees of a database that hold anything, or the root alone."""

    trees: tuple[TreeShape, ...]

    @property
    def size_bytes(self) -> int:
        return sum(tree.size_bytes for tree in self.trees)

    @property
    def l0_ssts(self) -> int:
        return sum(tree.l0_ssts for tree in self.trees)

    @property
    def runs(self) -> int:
        return sum(len(tree.runs) for tree in self.trees)

    @property
    def read_amplification(self) -> int:
        return max((tree.sequences for tree in self.trees), default=0)

    @property
    def space_amplification(self) -> float | None:
        oldest = sum(tree.runs[-1].size_bytes for tree in self.trees if tree.runs)
        if not oldest or any(tree.size_bytes and not tree.runs for tree in self.trees):
            return None
        return self.size_bytes / oldest


def shape_of(manifest: Manifest) -> Shape:
    """Return the shape of a database."""
    trees = [_tree_shape(tree) for tree in manifest.trees()]
    return Shape(tuple(tree for tree in trees if tree.l0_ssts or tree.runs) or tuple(trees[:1]))


def _tree_shape(tree: Tree) -> TreeShape:
    return TreeShape(
        tree.prefix,
        len(tree.l0),
        sum(view.sst.size_bytes for view in tree.l0),
        tuple(RunShape(run.id, len(run.views), run.size_bytes) for run in tree.runs),
    )
