"""Further parts of a table's plan: the history that could expire, and the last search for orphan files."""

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
    """The history outlook and the last orphan run of a table."""

    history: Outlook | LithifyError
    """The outlook, or the error that prevents it; the rest of the plan is shown nevertheless."""
    orphans: OrphanRun | None


UNREAD = PlanDetails(StoreUnavailable("it has not been read yet"), None)


def read_beside(dataset: IcebergDataset, clock: Clock, ids: Ids) -> PlanDetails:
    """Read the details of a table's plan."""
    history: Outlook | LithifyError
    try:
        history = Expirer(dataset, clock, ids).outlook()
    except (Refused, CorruptObject) as error:
        history = error
    return PlanDetails(history, OrphanRuns(dataset.store, dataset.own_folder).known())
