"""The display of a dataset's status: common facts, and those of its kind."""

from __future__ import annotations

from dataclasses import asdict

from lithify.datasets.registry import registered_for
from lithify.protocol.status import Status
from lithify.views.blocks import Shown
from lithify.views.documents import plain


def show_status(found: Status) -> Shown:
    """Return all facts as the document, and the kind's own as blocks."""
    kind = registered_for(found.url).load()
    shown = kind.show_status(found)
    document = {
        "url": found.url,
        "at_ms": found.at_ms,
        "coordinator": {
            "presence": (found.coordinator.system or found.coordinator.presence.name).lower(),
            "is_alive": found.coordinator.is_alive,
            "epoch": found.coordinator.epoch,
            "holder": found.coordinator.holder,
            "lease_ends_ms": found.coordinator.lease_ends_ms,
        },
        "compactions": [
            {**plain(asdict(c)), "share_done": round(c.share_done, 4)} for c in found.compactions
        ],
        "proposals": [
            {"spec": kind.show_spec(p.spec), "cost_bytes": p.cost_bytes, "reason": p.reason}
            for p in found.plan.proposals
        ],
        "notes": list(found.plan.notes),
        "pressure": [],  # set by kinds whose writers wait for compaction
        "stall_ms": found.stall_ms,
        "failures": [
            {
                "compaction": f.compaction,
                "reason": f.reason,
                "attempts": f.attempts,
                "is_cancelled": f.is_cancelled,
                "at_ms": f.at_ms,
            }
            for f in found.failures
        ],
    }
    return Shown({**document, **shown.document}, shown.blocks)
