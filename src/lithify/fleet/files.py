"""What a fleet keeps in the store, below its URL.

| object | what | may be lost |
|---|---|---|
| `catalog/<20 digits>.json`, `catalog.boundary` | the truth: queues and rules | no |
| `catalog-history/` | how far old versions of it were said to be free, and who holds one | no |
| `members/<role>-<ulid>.json` | who lives | yes |
| `boards/<queue id>/<member>.json` | what may be claimed | yes |
| `bells/<queue id>` | look at the boards | yes |
| `memory/<member>.json.zst` | what a keeper knows of its datasets | yes |
| `wakes/<hash>` | look at this dataset now | yes |
| `now` | nothing: when it was written tells the store's time | yes |
| `proof.json` | that the store keeps what the protocol rests on (`lithify.store.proof`) | yes |
"""

from __future__ import annotations

import random

from lithify.base.clock import Clock
from lithify.base.ids import Ids
from lithify.fleet.catalog.files import CatalogFiles
from lithify.fleet.catalog.history import CatalogHistory
from lithify.fleet.handover import MemoryFiles
from lithify.fleet.members import MemberFiles
from lithify.fleet.notifications import Bells
from lithify.fleet.refresh_requests import WakeFiles
from lithify.fleet.task_queue_files import BoardFiles
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.times import StoreTime


class FleetFiles:
    """The fleet at `url`, which lies below `folder` of `store`."""

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
