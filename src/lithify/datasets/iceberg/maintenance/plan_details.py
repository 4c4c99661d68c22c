"""What a plan of a table shows besides: what of its history could go, and the last look for orphan files."""

from __future__ import annotations

from dataclasses import dataclass

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, LithifyError, Refused, StoreUnavailable
from lithify.base.ids import Ids
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance.expire import Expirer, Outlook
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRun, OrphanRuns


@dataclass(frozen=True, slots=True)
class PlanDetails:
    """What was found."""

    history: Outlook | LithifyError
    """Where that is refused the rest of a plan is shown all the same."""
    orphans: OrphanRun | None


UNREAD = PlanDetails(StoreUnavailable("it has not been looked at yet"), None)


def read_beside(dataset: IcebergDataset, clock: Clock, ids: Ids) -> PlanDetails:
    """Look at it."""
    history: Outlook | LithifyError
    try:
        history = Expirer(dataset, clock, ids).outlook()
    except (Refused, CorruptObject) as error:
        history = error
    return PlanDetails(history, OrphanRuns(dataset.store, dataset.own_folder).known())
