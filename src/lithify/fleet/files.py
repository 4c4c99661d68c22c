"""The files of a fleet, below its URL.

| object | content | may be lost |
|---|---|---|
| `catalog/<20 digits>.json`, `catalog.boundary` | the source of truth: queues, rules, tenants | no |
| `catalog-history/` | threshold below which old catalog versions may be deleted; holds | no |
| `members/<role>-<ulid>.json` | heartbeats | yes |
| `boards/<queue id>/<member>.json` | task offers | yes |
| `bells/<queue id>` | notifications: read the task offers | yes |
| `memory/<member>.json.zst` | a coordinator's checkpoints of its datasets | yes |
| `wakes/<hash>` | refresh requests: poll this dataset now | yes |
| `now` | nothing: its timestamp shows the store's time | yes |
| `proof.json` | proof that the store has the guarantees of the protocol (`lithify.store.proof`) | yes |
"""

from __future__ import annotations

import random

from lithify.base.clock import Clock
from lithify.base.ids import Ids
from lithify.fleet.catalog.files import CatalogFiles
from lithify.fleet.catalog.history import CatalogHistory
from lithify.fleet.handover import MemoryFiles
from lithify.fleet.members import MemberFiles
from lithify.fleet.notifications import Bells, WakeFiles
from lithify.fleet.task_queue_files import BoardFiles
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.times import StoreTime


class FleetFiles:
    """The files of the fleet at `url`, which is `folder` of `store`."""

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        folder: str,
        clock: Clock,
        ids: Ids,
        rng: random.Random | None = None,
    ) -> None:
        self.url = url
        self.catalog = CatalogFiles(url, store, folder, clock, ids, rng)
        self.members = MemberFiles(store, folder)
        self.history = CatalogHistory(
            url, store, folder, self.catalog.versions, self.members, clock, ids, rng
        )
        self.boards = BoardFiles(store, folder)
        self.bells = Bells(store, folder, ids)
        self.memory = MemoryFiles(store, folder)
        self.wakes = WakeFiles(store, folder)
        self.store_time = StoreTime(store, join(folder, "now"), clock)
