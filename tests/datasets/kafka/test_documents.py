"""What Lithify writes for itself in JSON may come back as anything: that is damage, and never a defect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import Ulid
from lithify.datasets.kafka.buckets.copying import COPY_REPORTS
from lithify.datasets.kafka.buckets.manifest import BucketManifest
from lithify.datasets.kafka.buckets.publishing import PUBLICATION_REPORTS
from lithify.datasets.kafka.state import Copied, LogState, PartitionRound
from lithify.store.objects import ObjectStore
from lithify.testing import MemoryStore
from lithify.watermarks.groups import Marks, PartitionStanding

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


ULID = "01HF7YAT00ABCDEFGHJKMNPQRS"
ROUND = {
    "fingerprint": "f",
    "done": [ULID],
    "bound": (1 << 63) - 1,
    **dict.fromkeys(("settled", "segments", "size_bytes", "records", "tombstones"), 4),
    **dict.fromkeys(("new_segments", "new_bytes"), 0),
}
STATE = {"version": 1, "source": "s", "rounds": {}, "published": [], "incarnation": "", "standings": {}}


def decoded(**changes: object) -> LogState:
    return LogState.decode(json.dumps({**STATE, **changes}).encode(), KEY)


def test_a_state_is_read_as_it_was_written() -> None:
    found = PartitionRound("f", (Ulid(ULID),), (1 << 63) - 1, 4, 4, 4, 4, topic_id="t", end=7)
    standings = {0: PartitionStanding(Marks(1, 2), 3), 12: PartitionStanding()}
    state = LogState({"orders-0": found}, (Ulid(ULID),), "s", "i", standings)
    copied = {"orders-0": Copied("t", 1, 2, "f", "m", ("g",), ("h",))}
    for one in (LogState(), state, replace(state, copy_id="c", announced=2, copied=copied)):
        assert LogState.decode(one.encode(), KEY) == one
    assert "copy" not in json.loads(state.encode())


def test_states_of_before_are_read() -> None:
    (found,) = decoded(rounds={"orders-0": ROUND}).rounds.values()
    assert (found.bound, found.topic_id, found.end) == ((1 << 63) - 1, "", 0)
    for is_visible in (False, True):
        state = decoded(copy={"id": "c", "is_visible": is_visible, "copied": {}})
        assert (state.copy_id, state.is_copy_visible) == ("c", is_visible)


def test_a_state_of_a_newer_version_is_no_damage() -> None:
    with pytest.raises(Unsupported, match="is of version 2"):
        decoded(version=2, rounds=[])


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": {"orders-0": {name: value for name, value in ROUND.items() if name != "bound"}}},
        {"rounds": {"orders-0": {**ROUND, "done": []}}},
        {"rounds": {"orders-0": {**ROUND, "done": [ULID] * 5}}},
        {"rounds": {"orders-0": {**ROUND, "records": True}}},
        {"rounds": {"orders-0": {**ROUND, "bound": 1 << 63}}},
        {"published": ["x"]},
        {"standings": {"-1": [0, 0, 0]}},
        {"standings": {"1": [0, 0]}},
        {"copy": {"id": "c", "announced": 1, "copied": {"orders-0": {}}}},
        {"source": "\ud800"},
    ],
)
def test_a_damaged_state(changes: Mapping[str, object]) -> None:
    with pytest.raises(CorruptObject, match=KEY):
        decoded(**changes)


def test_tasks_do_not_import_pydantic() -> None:
    """Importing it would delay the start of each task, so their documents are taken apart by hand."""
    modules = "cleaning.tasks", "buckets.merging", "buckets.publishing", "buckets.copying"
    names = ", ".join(f"lithify.datasets.kafka.{name}" for name in modules)
    code = f"import sys, {names}; print({{'pydantic', 'pydantic_core'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
