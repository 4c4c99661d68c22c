"""What must happen in a few hundred seeds: a simulator that never plays a fault shows nothing about it.

Counts are by the names that the run uses: `fault: …` what went wrong, `step: …` how compactions moved and
who moved them, `event: …` what else happened, `collected: …` what was collected.
"""

from __future__ import annotations

_PROCESSES = ("coordinator", "worker", "writer", "collector", "reader", "person", "task")
_CALL_FAULTS = ("fail_before", "fail_after", "crash_before", "crash_after", "paused")

FAULTS = (
    *(f"fault: {process} {fault}" for process in _PROCESSES for fault in _CALL_FAULTS),
    "fault: clock far off",
    "fault: delay",
    "fault: late flush",
    "fault: task failed",
    "fault: task hung",
    "fault: task orphaned",
    "fault: task ran twice",
    "fault: task result lost",
)
STEPS = (
    "step: absent -> submitted by anyone",
    "step: absent -> scheduled by coordinator",
    "step: absent -> running by a coordinator for the worker beside it",
    "step: submitted -> scheduled by coordinator",
    "step: submitted -> failed by coordinator",
    "step: scheduled -> running by any worker",
    "step: scheduled -> submitted by coordinator",
    "step: scheduled -> failed by coordinator",
    "step: running -> running by its worker",
    "step: running -> completed by a coordinator for the worker beside it",
    "step: running -> compacted by its worker",
    "step: running -> scheduled by its worker",
    "step: running -> scheduled by coordinator",
    "step: compacted -> completed by coordinator",
    "step: submitted -> failed by a person",
    "step: scheduled -> failed by a person",
    "step: running -> failed by a person",
)
EVENTS = (
    "event: Reclaimed",
    "event: Resumed",
    "event: Lost",
    "event: AttemptFailed",
    "event: Failed",
    "event: CompactionRefused",
    "event: collected number created again",
    "event: compaction committed",
    "event: person submitted",
    "event: person cancelled",
    "event: person tried again",
    "event: coordinator ended by CoordinatorAlive",
    "event: coordinator ended by Fenced",
    "event: coordinator replaced in its sleep",
    "event: coordinator stopped",
    "event: coordinator told to take over",
    "event: SlateDB's coordinator opened",
    "event: slatedb ended by Fenced",
    "event: one-shot run ended well",
    "event: question answered",
    "event: question asked",
    "event: reader pinned a manifest",
    "event: worker stopped",
    "event: writer ended by Fenced",
    "event: writer met StoreError",
    "event: writer met VersionConflict",
    "event: writer replaced in its sleep",
    "event: writer stalled at l0_max_ssts",
)
COLLECTED = tuple(
    f"collected: {kind}"
    for kind in ("checkpoint", "compacted", "manifest", "compactions", "progress", "attempts")
)
EXPECTED = (*FAULTS, *STEPS, *EVENTS, *COLLECTED)
