"""What must happen in a few hundred seeds of this world: a trouble that is never played shows nothing."""

from __future__ import annotations

from collections.abc import Mapping

EXPECTED = (
    "trouble: damaged",
    "trouble: away",
    "trouble: defect",
    "fault: answer to the note of a failure lost",
    "fault: engine ends",
    "fault: engine stumbles",
    "fault: process killed",
    "fault: ledger write fails after the note of a failure",
    "step: scheduled by coordinator",
    "step: running by pool",
    "step: scheduled by pool",
    "step: compacted by pool",
    "step: completed by coordinator",
    "step: failed by coordinator",
    "step: failed by person",
    "event: AttemptFailed",
    "event: Committed",
    "event: EngineLost",
    "event: Failed",
    "event: Lost",
    "event: Quarantined",
    "event: Reclaimed",
    "event: Recovered",
    "event: Resumed",
    "event: cancellation noted",
    "event: chunk deferred",
    "event: dataset looked at again",
    "event: failure noted",
    "event: person cancelled",
    "event: pool ended with its engine",
    "event: several datasets fail",
)


def missing(counts: Mapping[str, int]) -> list[str]:
    """What is expected and never happened."""
    return [name for name in EXPECTED if not counts.get(name)]
