"""Check whether a compaction may be scheduled on the current table (pure). The commit checks much more."""

from __future__ import annotations

from lithify.datasets.iceberg.model import IcebergCompaction, IcebergLedger, TableState
from lithify.protocol.model import CompactionState


def validate(compaction: IcebergCompaction, state: TableState, ledger: IcebergLedger) -> str | None:
    """Return why the compaction must not be scheduled; `None` if it may. Compactions that are already
    scheduled are checked by their worker, which does the remaining work."""
    if compaction.state is CompactionState.SCHEDULED:
        return None
    if state.refusal:
        return state.refusal
    spec = compaction.spec
    if not spec.inputs:
        return "it has no inputs"
    if len(set(spec.inputs)) != len(spec.inputs):
        return "an input is listed twice"
    for part in spec.parts:
        for path in part.inputs:
            file = state.by_id.get(path)
            if file is None:
                return f"{path} is no longer a file of the table"
            if file.group != part.lane.group:
                return f"{path} is in another partition than the other inputs"
        if list(part.cuts) != sorted(set(part.cuts)):
            return "its cuts do not ascend"
    inputs = set(spec.inputs)
    for other in ledger.active():
        goes_first = other.state is not CompactionState.SUBMITTED or other.id < compaction.id
        if other.id != compaction.id and goes_first and inputs & set(other.spec.inputs):
            return f"compaction {other.id} rewrites some of the same files"
    return None
