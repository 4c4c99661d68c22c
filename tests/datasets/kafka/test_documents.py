"""What Lithify writes for itself in JSON may come back as anything: that is damage, and never a defect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.buckets.copying import COPY_REPORTS
from lithify.datasets.kafka.buckets.manifest import BucketManifest
from lithify.datasets.kafka.buckets.publishing import PUBLICATION_REPORTS
from lithify.store.objects import ObjectStore
from lithify.testing import MemoryStore

KEY = "a/document"
JUNK = {
    "no JSON": b"\xff",
    "nested without end": b"[" * 200_000,
    "a list": b"[1]",
    "a list where objects are": b'{"refused": [], "objects": 1}',
    "a number without bound": b'{"refused": "", "fingerprint": "", "objects": 1e999, "size_bytes": 1}',
}
READERS: dict[str, Callable[[ObjectStore], object]] = {
    "of a publication": lambda store: PUBLICATION_REPORTS.decode(store.get(KEY), KEY),
    "of a copy": lambda store: COPY_REPORTS.decode(store.get(KEY), KEY),
    "of what was merged": lambda store: BucketManifest.decode(store.get(KEY), KEY),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_junk(read: Callable[[ObjectStore], object], junk: bytes) -> None:
    store = MemoryStore()
    store.put(KEY, junk)
    with pytest.raises(CorruptObject, match=KEY):
        read(store)
