"""What must happen in a few dozen seeds of this world: a fault that is never played shows nothing."""

from __future__ import annotations

from collections.abc import Mapping

EXPECTED = (
    "deleted: data_files",
    "deleted: manifest_files",
    "deleted: manifest_lists",
    "event: batch",
    "event: batch read again",
    "event: branch made",
    "event: compaction",
    "event: expired by hand",
    "event: expiry took effect",
    "event: held",
    "event: hold lapsed",
    "event: hold released",
    "event: hold renewed",
    "event: reader begins",
    "event: reader registered",
    "event: ref dropped",
    "event: rollback",
    "event: snapshot of a branch",
    "event: tag made",
    "fault: answer lost",
    "fault: clock jumps",
    "fault: commit answer lost",
    "fault: commit fails",
    "fault: commit late",
    "fault: fails",
    "fault: folder removed, by age",
    "fault: folder removed, whole",
    "fault: killed after a call",
    "fault: killed before a call",
    "fault: paused",
    "fault: sent twice",
    "fault: slow",
    "outcome: expired",
    "outcome: held",
    "outcome: nothing_to_do",
    "outcome: state_lost",
    "outcome: unpublished",
)


def missing(counts: Mapping[str, int]) -> list[str]:
    """What is expected and never happened."""
    return [name for name in EXPECTED if not counts.get(name)]
