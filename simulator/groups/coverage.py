"""What must happen in a few dozen seeds of this world: a fault that is never played shows nothing."""

from __future__ import annotations

EXPECTED = (
    "event: a copy is no source",
    "event: abort",
    "event: commit",
    "event: copy adopts the thresholds",
    "event: copied in vain",
    "event: copy joins with nothing",
    "event: copy joins with what it has",
    "event: copy restored",
    "event: leader",
    "event: leader is fenced",
    "event: member comes back",
    "event: member removed",
    "event: no round is due",
    "event: reader commits",
    "event: reader adopts the thresholds",
    "event: reader joins with nothing",
    "event: reader joins with what it has",
    "event: reader rewound",
    "event: round",
    "event: scan",
    "event: thresholds too high",
    "fault: answer lost",
    "fault: fails",
    "fault: killed after a call",
    "fault: killed before a call",
    "fault: paused",
    "fault: sent twice",
    "fault: slow",
)
