"""The dashboard's actions, the same as the commands of their names. Each needs two steps: a page that states
the consequence, and its button."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lithify.api.client import Dataset
from lithify.base.errors import Refused
from lithify.service.failures import CANCEL_PAUSE
from lithify.web.readers import PageSource

MAX_IDS = 100


@dataclass(frozen=True, slots=True)
class DatasetAction:
    """The texts of an action."""

    question: str
    consequence: str
    done: str
    shown_on: str
    """The dataset's page that shows the result."""


ACTIONS: Mapping[str, DatasetAction] = {
    "retry": DatasetAction(
        "Retry this compaction",
        "It is submitted again under a new id, and its failure is cleared. A coordinator must be running.",
        "Submitted again.",
        "running",
    ),
    "cancel": DatasetAction(
        "Cancel this compaction",
        "Its work is lost, but no data. The same sources are not planned for one minute, and then again "
        "if there is still a reason.",
        "Cancelled.",
        "running",
    ),
    "submit": DatasetAction(
        "Compact everything",
        "A full compaction is submitted: all data that is not compact is rewritten, which can take long. A "
        "coordinator must be running.",
        "Submitted.",
        "running",
    ),
}


async def act(source: PageSource, action: str, ids: Sequence[str]) -> dict[str, Any]:
    """Do the action and return the document that the command prints with `--json`. `Refused` if ids are
    missing, too many, or given for a submission."""
    if (action == "submit") == bool(ids):
        what = "a submission takes no ids" if ids else f"give the ids of the compactions to {action}"
        raise Refused(what)
    if len(ids) > MAX_IDS:
        raise Refused(f"give at most {MAX_IDS} compactions at once")

    def run(dataset: Dataset) -> dict[str, Any]:
        if action == "cancel":
            return {"cancelled": list(dataset.cancel(*ids)), "left_alone_ms": CANCEL_PAUSE.first_ms}
        job = dataset.submit(full=True) if action == "submit" else dataset.retry(*ids)
        alive = dataset.is_coordinated()
        return {"submitted": list(job.ids), "notes": list(job.notes), "coordinator_is_alive": alive}

    found: dict[str, Any] = await source.do(run)
    return found
