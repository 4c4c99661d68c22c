"""Topics of a broker that has nothing but object storage (Nisshi, formerly Tansu): one batch an object.

    clusters/C/topics/orders/partitions/0000000003/records/00000000000000081240.batch
    clusters/C/topics/orders/partitions/0000000003/watermark.json

The name is the base offset, and the field inside is 0. Such a broker lists the whole folder for every fetch,
so what its readers suffer from is the number of objects. They would be merged up to `TARGET_BYTES`, since a
fetch ends at 5 MiB.

So far these topics are planned and shown, and nothing is written beside them: the broker is alive, finds the
end of a partition by the newest object, and can be served only by rules of its own. Open transactions are
not looked for: a plan may say more than could be done right now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lithify.datasets.kafka.layouts.contract import PartitionFolder, Segment, fingerprint_of
from lithify.errors import DatasetNotFound
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

TARGET_BYTES = 900_000
_TOPIC = re.compile(r"(?:.*/)?clusters/[^/]+/topics/([^/]+)")
_PARTITION = re.compile(r"[0-9]{10}")
_OBJECT = re.compile(r"([0-9]{20})\.batch")


class ObjectTopic:
    """A topic in a broker's bucket (`contract.Layout`)."""

    target_bytes = TARGET_BYTES
    refusal = (
        "is a topic in a broker's bucket, which is only looked at so far: plan, status and inspect work, and "
        "nothing is written"
    )

    def __init__(self, store: ObjectStore, root: str) -> None:
        self._store, self._root = store, root

    @staticmethod
    def is_at(store: ObjectStore, root: str) -> bool:
        """Whether a folder is where such a broker keeps a topic. The store is asked only if it may be."""
        return _TOPIC.fullmatch(root) is not None and join(root, "partitions") in store.folder(root).folders

    def partitions(self) -> Mapping[str, PartitionFolder]:
        folders = self._store.folder(join(self._root, "partitions")).folders
        numbers = sorted(name for folder in folders if _PARTITION.fullmatch(name := _name(folder)))
        found = {f"{_name(self._root)}-{int(number)}": self._partition(number) for number in numbers}
        there = {name: folder for name, folder in found.items() if folder is not None}
        if not there:
            raise DatasetNotFound(f"{self._root}: there are no partitions with objects (.batch)")
        return there

    def check_output(self, store: ObjectStore, folder: str) -> None:
        """Nothing is written."""

    def _partition(self, number: str) -> PartitionFolder | None:
        folder = join(self._root, "partitions", number, "records")
        listed = sorted(self._store.list(folder), key=lambda meta: meta.key)
        objects = tuple(segment for meta in listed if (segment := _object(meta)) is not None)
        return PartitionFolder(folder, objects, (), fingerprint_of(listed)) if objects else None


def _object(meta: ObjectMeta) -> Segment | None:
    found = _OBJECT.fullmatch(_name(meta.key))
    if found is None:
        return None
    return Segment(meta.key, int(found[1]), meta.size, meta.last_modified_ms, meta.etag)


def _name(key: str) -> str:
    return key.rpartition("/")[2]
