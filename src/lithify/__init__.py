"""Lithify: distributed compaction for data in object storage, on Spark.

The names below are public, as is `lithify.testing`; everything else may change. They are imported when they
are first used, so that `import lithify` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lithify.api.client import Dataset, Job, Status, open
    from lithify.api.copies import Mirror, restore
    from lithify.api.fleets import Fleet
    from lithify.api.groups import Group
    from lithify.api.results import Proposals, Proposed, Result
    from lithify.api.serving import Service
    from lithify.base.errors import (
        CoordinatorAlive,
        CorruptObject,
        DatasetNotFound,
        DeadlineExceeded,
        EngineDown,
        EngineError,
        Fenced,
        HoldLapsed,
        LithifyError,
        Refused,
        StoreError,
        Unsupported,
    )

__all__ = [
    "CoordinatorAlive",
    "CorruptObject",
    "Dataset",
    "DatasetNotFound",
    "DeadlineExceeded",
    "EngineDown",
    "EngineError",
    "Fenced",
    "Fleet",
    "Group",
    "HoldLapsed",
    "Job",
    "LithifyError",
    "Mirror",
    "Proposals",
    "Proposed",
    "Refused",
    "Result",
    "Service",
    "Status",
    "StoreError",
    "Unsupported",
    "open",
    "restore",
]
_HOMES = {
    **dict.fromkeys(("Dataset", "Job", "Status", "open"), "lithify.api.client"),
    **dict.fromkeys(("Proposals", "Proposed", "Result"), "lithify.api.results"),
    **dict.fromkeys(("Mirror", "restore"), "lithify.api.copies"),
    "Fleet": "lithify.api.fleets",
    "Group": "lithify.api.groups",
    "Service": "lithify.api.serving",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "lithify.base.errors")), name)
