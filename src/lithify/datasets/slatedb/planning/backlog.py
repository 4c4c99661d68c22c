"""The distance of a database's writer from a stall: its L0 backlog, and how fast that grows. Pure.

A writer stops flushing a tree when it has `l0_max_ssts` L0 SSTs. Their rate is computed from the times in the
ids of the existing ones and of the newest one already compacted: the number of flushes since the oldest of
these, divided by the time until now, so that the rate falls while nothing is written.
"""

from __future__ import annotations

from lithify.base.backlog import Backlog, Detail
from lithify.base.ids import ulid_ms
from lithify.datasets.slatedb.model import Manifest, Tree, tree_label


def backlog(manifest: Manifest, now_ms: int, l0_max_ssts: int) -> tuple[Backlog, ...]:
    """Return the backlog of each tree that holds anything, or of the root alone."""
    trees = [tree for tree in manifest.trees() if tree.l0 or tree.runs] or [manifest.root]
    return tuple(_backlog(tree, now_ms, l0_max_ssts) for tree in trees)


def _backlog(tree: Tree, now_ms: int, l0_max_ssts: int) -> Backlog:
    rate = _flushes_per_s(tree, now_ms)
    room = max(l0_max_ssts - len(tree.l0), 0)
    stall_ms = None
    if room == 0:
        stall_ms = 0
    elif rate:
        stall_ms = round(room / rate * 1000)
    l0_bytes = sum(view.sst.size_bytes for view in tree.l0)
    size_bytes = l0_bytes + sum(run.size_bytes for run in tree.runs)
    details = (
        Detail("l0_ssts", len(tree.l0), "lithify_l0_ssts", "L0 SSTs"),
        Detail("l0_bytes", l0_bytes, "lithify_l0_bytes", "Bytes of L0 SSTs: the backlog"),
        Detail("runs", len(tree.runs), "lithify_sorted_runs", "Sorted runs"),
        Detail("size_bytes", size_bytes, "lithify_size_bytes", "Bytes of all SSTs"),
        Detail(
            "l0_max_ssts",
            l0_max_ssts,
            "lithify_l0_max_ssts",
            "L0 SSTs at which the writer stalls",
            by_unit=False,
        ),
        Detail("flushes_per_s", rate),
    )
    return Backlog(tree_label(tree.prefix), len(tree.l0), l0_max_ssts, stall_ms, details)


def _flushes_per_s(tree: Tree, now_ms: int) -> float | None:
    flushed_ms = [ulid_ms(view.id) for view in tree.l0]
    if tree.last_compacted_l0 is not None:
        flushed_ms.append(ulid_ms(tree.last_compacted_l0))
    if len(flushed_ms) < 2:
        return None
    elapsed_s = (max(now_ms, *flushed_ms) - min(flushed_ms)) / 1000
    return (len(flushed_ms) - 1) / elapsed_s if elapsed_s > 0 else None
