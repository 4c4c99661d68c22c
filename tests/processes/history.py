"""What a database's ledger said, version by version. Nothing may have been collected yet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, decode_ledger
from lithify.protocol.model import CompactionState


@dataclass(frozen=True, slots=True)
class Version:
    """One compactions file."""

    id: int
    written_s: float
    """Modification time, in seconds since the epoch."""
    ledger: SlateLedger


def history(database: Path) -> list[Version]:
    """Every version there is, oldest first."""
    return [_read(path) for path in sorted((database / "compactions").glob("*.compactions"))]


def latest(database: Path) -> SlateLedger | None:
    """The ledger as it is now."""
    paths = sorted((database / "compactions").glob("*.compactions"))
    return _read(paths[-1]).ledger if paths else None


def _read(path: Path) -> Version:
    data = path.read_bytes()
    return Version(int(path.stem), path.stat().st_mtime, decode_ledger(data, path.name))


def owner(compaction: SlateCompaction | None) -> str | None:
    """Who runs it."""
    is_running = compaction is not None and compaction.state is CompactionState.RUNNING
    return compaction.worker.id if is_running and compaction is not None and compaction.worker else None


def recorded(compaction: SlateCompaction | None) -> frozenset[int]:
    """The ranges with outputs in its progress."""
    if compaction is None or compaction.progress is None:
        return frozenset()
    return frozenset(i for i, r in enumerate(compaction.progress.ranges) if r.outputs)


def lives(versions: list[Version]) -> dict[str, list[tuple[CompactionState, str | None]]]:
    """Of each compaction its states and their owners in order, without repetitions."""
    found: dict[str, list[tuple[CompactionState, str | None]]] = {}
    for version in versions:
        for compaction in version.ledger.compactions:
            steps = found.setdefault(compaction.id, [])
            step = (compaction.state, compaction.worker.id if compaction.worker else None)
            if not steps or steps[-1] != step:
                steps.append(step)
    return found


ALLOWED = {
    (CompactionState.SUBMITTED, CompactionState.SCHEDULED),
    (CompactionState.SUBMITTED, CompactionState.COMPLETED),
    (CompactionState.SUBMITTED, CompactionState.FAILED),
    (CompactionState.SCHEDULED, CompactionState.SUBMITTED),
    (CompactionState.SCHEDULED, CompactionState.RUNNING),
    (CompactionState.SCHEDULED, CompactionState.FAILED),
    (CompactionState.RUNNING, CompactionState.SCHEDULED),
    (CompactionState.RUNNING, CompactionState.COMPACTED),
    (CompactionState.RUNNING, CompactionState.COMPLETED),  # short work of the worker beside the coordinator
    (CompactionState.RUNNING, CompactionState.FAILED),
    (CompactionState.COMPACTED, CompactionState.COMPLETED),
    (CompactionState.COMPACTED, CompactionState.FAILED),
}


def check_protocol(versions: list[Version]) -> None:
    """No state changed in a way the protocol does not allow, only owners moved a compaction on, and
    epochs never fell."""
    for compaction_id, steps in lives(versions).items():
        for (before, mine), (after, theirs) in pairwise(steps):
            assert before is after or (before, after) in ALLOWED, (compaction_id, before, after)
            if before is CompactionState.RUNNING and after in (
                CompactionState.RUNNING,
                CompactionState.COMPACTED,
            ):
                assert mine == theirs, f"{theirs} moved {compaction_id} of {mine} on"
    epochs = [version.ledger.epoch for version in versions]
    assert epochs == sorted(epochs)
