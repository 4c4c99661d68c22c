"""An operator's requested merge, as a spec (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from lithify.base.errors import Refused
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.model import Manifest, TieredSpec
from lithify.datasets.slatedb.planning.tiered import MAX_RUN_ID


def spec_of(
    snapshot: Manifest,
    ledger: SlateLedger,
    segment: bytes,
    l0_view_ids: Sequence[Ulid],
    runs: Sequence[int],
    *,
    all_l0: bool = False,
) -> TieredSpec:
    """Return the merge of these sources of one tree, in the order the format requires. The result replaces
    the oldest run among them, or becomes a new run."""
    tree = snapshot.tree(segment)
    if tree is None:
        raise Refused(f"there is no segment {segment.hex()}; `lithify inspect manifest` shows the segments")
    missing: list[str] = [v for v in l0_view_ids if v not in {view.id for view in tree.l0}]
    missing += [str(run) for run in runs if run not in {run.id for run in tree.runs}]
    if missing:
        raise Refused(
            f"{', '.join(missing)} is not a source there; `lithify inspect manifest` shows the views and runs"
        )
    chosen_l0 = tuple(view.id for view in tree.l0 if all_l0 or view.id in l0_view_ids)
    chosen_runs = tuple(run.id for run in tree.runs if run.id in runs)
    destination = chosen_runs[-1] if chosen_runs else _free_run_id(snapshot, ledger)
    return TieredSpec(segment, chosen_l0, chosen_runs, destination)


def _free_run_id(snapshot: Manifest, ledger: SlateLedger) -> int:
    taken = [run.id for tree in snapshot.trees() for run in tree.runs]
    taken += [c.spec.destination for c in ledger.active() if isinstance(c.spec, TieredSpec)]
    free = max(taken, default=-1) + 1
    if free > MAX_RUN_ID:
        raise Refused("all run ids are used up; name a sorted run as a source, so that its id is reused")
    return free
