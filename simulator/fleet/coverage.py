"""What must happen in a few hundred seeds of this world: a trouble that is never played shows nothing."""

from __future__ import annotations

from simulator.fleet.scenario import Anew, Drill

EXPECTED = (
    *(f"drill: {drill.value}" for drill in Drill),
    *(f"anew: {what.name.lower()}" for what in Anew),
    *(f"anew: {what.name.lower()} later" for what in Anew),
    "event: AttemptFailed",
    "event: MadeAnew",
    "event: Committed",
    "event: Quarantined",
    "event: Recovered",
    "event: a sick worker is known",
    "event: catalog changed",
    "event: catalogs cut off",
    "event: worker leaves",
    "event: coordinator leaves",
    "event: taken back",
    "event: written to another dataset",
    "event: task failed",
    "fault: answer lost",
    "fault: bells lost",
    "fault: boards lost",
    "fault: clock jumps",
    "fault: fails",
    "fault: killed after a call",
    "fault: killed before a call",
    "fault: members lost",
    "fault: memory lost",
    "fault: paused",
    "fault: sent twice",
    "fault: slow",
    "step: compacted by worker",
    "step: completed by coordinator",
    "step: failed by coordinator",
    "step: running by worker",
    "step: scheduled by coordinator",
    "trouble: away",
    "trouble: damaged",
    "trouble: defect",
)
