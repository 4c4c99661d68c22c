"""Topics in a broker's bucket that are copied to a new topic, while the broker may run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lithify.base.errors import CorruptObject, LithifyError, ObjectExists, Refused, StoreUnavailable
from lithify.base.ids import RandomIds
from lithify.datasets.kafka import view
from lithify.datasets.kafka.buckets import copying
from lithify.datasets.kafka.format.record_batches import rebased
from lithify.datasets.kafka.kind import KIND
from lithify.datasets.kafka.layouts import objects
from lithify.datasets.registry import config_type
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.wrapped import Call, ResultT, WrappedStore
from lithify.testing import ManualClock
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from tests.cli.invoking import invoke_json
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket, Once, a_bucket
from tests.datasets.kafka.copies import (
    NEW,
    Pausing,
    asked,
    commit,
    committed,
    copied,
    copy_of,
    dying,
    high,
    numbered,
    opened,
    same_log,
    told,
    words,
)
from tests.datasets.kafka.folders import latest
from tests.datasets.kafka.test_windows import replayed, some
from tests.fuzz.running import without_waiting


def test_a_copy_is_compacted_and_the_source_stays() -> None:
    bucket = a_bucket(some())
    commit(bucket, "readers", 41)
    before = bucket.contents()
    summary = copied(bucket)
    assert not summary.failures
    assert bucket.contents() == before
    same_log(bucket)
    assert copy_of(bucket).bases() == [0, 87]
    assert len(copy_of(bucket).rows()) == 35
    assert committed(copy_of(bucket), "readers") == 41
    found = told(bucket)
    assert found["topic"] == {"name": NEW, "configs": [{"name": "cleanup.policy", "value": "compact"}]} | {
        "num_partitions": 1
    }
    assert found["id"] not in ("", bucket.id)
    assert not copied(bucket).started


def test_what_comes_later_is_put_behind_as_it_is() -> None:
    bucket = a_bucket(some(20))
    commit(bucket, "readers", 10)
    copied(bucket)
    bucket.produce(*some(40)[20:])
    commit(bucket, "readers", 120)
    before = copy_of(bucket).contents()
    copied(bucket)
    same_log(bucket)
    copy = copy_of(bucket)
    assert copy.bases() == [0, *range(57, 120, 3)]
    assert {key: data for key, data in copy.contents().items() if key in before and "batch" in key} == {
        key: data for key, data in before.items() if "batch" in key
    }
    assert committed(copy, "readers") == 120
    assert not copied(bucket).started


def test_a_late_object_in_a_hole_is_put_there() -> None:
    batches = [logs.data(n, ("a", f"{n}")) for n in range(30)]
    bucket = a_bucket(batch for batch in batches if batch.first != 10)
    copied(bucket)
    assert copy_of(bucket).bases() == [11, 29]
    bucket.store.put(bucket.key(10), rebased(logs.encode(logs.data(10, ("b", "late"))), 0))
    copied(bucket)
    assert copy_of(bucket).bases() == [10, 11, 29]
    assert (10, b"late") in [(row[0], row[3]) for row in copy_of(bucket).rows()]
    assert copy_of(bucket).earliest_and_latest()[1] == 29


def test_offsets_are_carried_though_nothing_came() -> None:
    """And a group that has gone on in the new topic keeps its own."""
    bucket = a_bucket(some())
    commit(bucket, "readers", 10)
    commit(bucket, "early", 10)
    copied(bucket)
    commit(bucket, "readers", 50)
    commit(bucket, "early", 50)
    commit(bucket, "late", 7)
    commit(copy_of(bucket), "early", 33)
    assert copied(bucket).started
    assert [committed(copy_of(bucket), group) for group in ("readers", "early", "late")] == [50, 33, 7]
    assert not copied(bucket).started
    (one,) = view.look(opened(bucket).snapshot())
    assert one.copy is not None
    assert (one.copy.groups, one.copy.groups_gone_on) == (("late", "readers"), ("early",))


def test_nothing_is_copied_from_an_open_transaction_on() -> None:
    """The broker would show it to readers of committed rows. It comes when it is decided."""
    batches = [
        *some(20),
        logs.in_transaction(60, ("t", "1"), id=3),
        *[logs.data(61 + n, ("a", f"{n}")) for n in range(9)],
    ]
    bucket = a_bucket(batches)
    copied(bucket)
    copy = copy_of(bucket)
    assert copy.bases()[-1] == 57
    assert copy.store.get(copy.key(57)) == bucket.store.get(bucket.key(57))
    assert high(copy) == 60
    assert not copied(bucket).started
    bucket.produce(logs.marker(70, id=3, commit=True))
    copied(bucket)
    same_log(bucket)
    assert copy.bases()[-1] == 70


def test_young_objects_wait_for_the_next_run() -> None:
    bucket = a_bucket(some())
    bucket.clock = ManualClock(bucket.listed()[0].last_modified_ms + 5000)
    summary = copied(bucket, quiet_period="1m")
    assert not told(bucket)
    assert summary.plan.notes == ("orders-0: all its objects are younger than quiet_period; run again",)
    bucket.clock.advance_s(60)
    copied(bucket, quiet_period="1m")
    same_log(bucket)


def test_partitions_are_shown_together() -> None:
    """One with objects and one that has had none yet; what that gets later is copied too."""
    bucket = a_bucket(some(), partitions=3)
    second = replace(bucket, number=1)
    second.produce(*some(5))
    copied(bucket)
    same_log(bucket)
    same_log(second)
    third = replace(bucket, number=2)
    assert json.loads(copy_of(third).store.get(f"{copy_of(third).partition}/watermark.json"))["high"] is None
    third.produce(*some(4))
    copied(bucket)
    same_log(third)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_that_grow_between_runs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(objects, "PIECE_BYTES", rng.choice((1, 700, 1 << 20)))
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", rng.choice((3, 11, 1000)))
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", rng.choice((1, 800, 900_000)))
    history = logs.random_history(rng)
    bucket = a_bucket(history[: len(history) // 2])
    before = bucket.contents()
    copied(bucket)
    assert bucket.contents() == before
    bucket.produce(*history[len(history) // 2 :])
    copied(bucket)
    copy = copy_of(bucket)
    rows = copy.rows()
    assert set(rows) <= set(bucket.rows())
    assert latest(row for row in rows if row[0] in decided(history)) == replayed(history)
    for start in rng.sample(range(history[-1].last + 1), 10):
        assert copy.rows(start) == [row for row in rows if row[0] >= start]


def decided(history: list[logs.Batch]) -> set[int]:
    """Offsets of rows that committed."""
    found: set[int] = set()
    waiting: dict[int, list[int]] = {}
    for batch in history:
        offsets = [row[0] for row in logs.expected_rows([batch])]
        if batch.control:
            rows = waiting.pop(batch.producer[0], [])
            found.update(rows if batch.records[0].key == b"\0\0\0\1" else [])
        elif batch.transactional:
            waiting.setdefault(batch.producer[0], []).extend(offsets)
        else:
            found.update(offsets)
    return found


def test_the_commands_say_how_to_cut_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a topic that grows, from plan to garbage."""
    monkeypatch.setattr(copying, "SystemClock", Pausing)
    bucket = a_bucket(some())
    arguments = asked(bucket)
    with without_waiting():
        planned = invoke_json("plan", *arguments)
        assert [one["reason"] for one in planned["proposals"]] == [
            "orders-0: copy 30 objects to orders.v2, compacted"
        ]
        assert not told(bucket)
        found = invoke_json("compact", *arguments)["copy"]
        assert (found["topic"], found["is_complete"], found["end_offsets"]) == (NEW, True, {"orders-0": 90})
        assert "offsets of the groups" in found["cut_over"][1]
        bucket.produce(*some(31)[30:])
        said = words("status", *arguments)
        assert "orders.v2 lacks 1 object; run again." in said
        said = words("compact", *arguments)
        assert "orders.v2 is complete." in said
        assert "1. Stop the producers" in said
        same_log(bucket)
        assert invoke_json("gc", "--delete", "--min-age", "0", *arguments)["deleted"]["work"] > 0
        same_log(bucket)
        assert "is copied to orders.v2 up to offset 93" in words("plan", *arguments)


# Dying


def killed_at(monkeypatch: pytest.MonkeyPatch, numbers: list[int], grown: bool) -> None:
    for number in numbers:
        bucket = grown_topic() if grown else a_topic()
        before = bucket.contents()
        dying(monkeypatch, bucket, number, StoreFault.CRASH_AFTER if number % 2 else StoreFault.CRASH_BEFORE)
        assert bucket.contents() == before, f"killed at call {number}"
        if told(bucket) and not grown:
            same_log(bucket)  # whole as soon as it is shown
        copied(bucket)
        assert bucket.contents() == before, f"killed at call {number}"
        same_log(bucket)
        assert committed(copy_of(bucket), "readers") == 41
        assert not copied(bucket).started


def a_topic() -> Bucket:
    bucket = a_bucket(some(12))
    commit(bucket, "readers", 41)
    return bucket


def grown_topic() -> Bucket:
    bucket = a_bucket(some(6))
    commit(bucket, "readers", 2)
    copied(bucket)
    bucket.produce(*some(12)[6:])
    commit(bucket, "readers", 41)
    return bucket


@pytest.mark.parametrize("grown", [False, True])
def test_killed_at_some_calls(monkeypatch: pytest.MonkeyPatch, grown: bool) -> None:
    """Nothing half is shown, the source is untouched, and the next run finishes."""
    count = len(dying(monkeypatch, grown_topic() if grown else a_topic(), 0, None))
    assert count > 60
    killed_at(monkeypatch, sorted(random.Random(5).sample(range(count // 3, count + 1), 14)), grown)


@pytest.mark.whole
@pytest.mark.parametrize("grown", [False, True])
def test_killed_at_every_call(monkeypatch: pytest.MonkeyPatch, grown: bool) -> None:
    count = len(dying(monkeypatch, grown_topic() if grown else a_topic(), 0, None))
    killed_at(monkeypatch, list(range(1, count + 1)), grown)


def test_killed_while_the_source_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an attempt on other terms has left in a topic that nobody knows is removed."""
    count = len(dying(monkeypatch, a_topic(), 0, None))
    for number in range(count // 2, count, 11):
        bucket = a_topic()
        dying(monkeypatch, bucket, number, StoreFault.CRASH_AFTER)
        bucket.produce(*some(16)[12:])
        copied(bucket)
        same_log(bucket)


# Refusals


def written_into(bucket: Bucket) -> None:
    copied(bucket)
    copy_of(bucket).produce(logs.data(90, ("k0", "somebody else's")))
    bucket.produce(logs.data(90, ("k0", "late")))


def compacted(bucket: Bucket) -> None:
    copied(bucket)
    bucket.compact()


def made_again(bucket: Bucket) -> None:
    copied(bucket)
    of_another_id(bucket)


def of_another_id(bucket: Bucket) -> None:
    bucket.id = "two"
    document = json.loads(bucket.store.get(f"{bucket.root}/clusters/c/meta.json"))
    document["topics"]["orders"]["id"] = "two"
    bucket.store.put(f"{bucket.root}/clusters/c/meta.json", json.dumps(document).encode())


def deleted(bucket: Bucket) -> None:
    copied(bucket)
    bucket.put_metadata()


def taken(bucket: Bucket) -> None:
    key = f"{bucket.root}/clusters/c/meta.json"
    document = json.loads(bucket.store.get(key))
    document["topics"][NEW] = {**document["topics"]["orders"], "id": "another"}
    bucket.store.put(key, json.dumps(document).encode())


REFUSALS: list[tuple[Callable[[Bucket], object], str]] = [
    (taken, "a topic orders.v2 exists already that is not a copy"),
    (
        lambda bucket: copy_of(bucket).produce(*some(2)),
        "the broker does not know a topic orders.v2, but its folder contains objects",
    ),
    (written_into, "a producer already writes to orders.v2"),
    (compacted, "orders-0: the copied part, below offset 90, has changed since"),
    (made_again, "orders-0: the topic was deleted and created again after it was copied"),
    (deleted, "the copy orders.v2 has been deleted since it was made"),
]


@pytest.mark.parametrize(("prepare", "reason"), REFUSALS)
def test_refusals(prepare: Callable[[Bucket], object], reason: str) -> None:
    """Nothing of either topic, of the broker's metadata or of groups is written."""
    bucket = a_bucket(some())
    prepare(bucket)

    def there() -> dict[str, bytes]:
        listed = bucket.store.list(bucket.root)
        return {meta.key: bucket.store.get(meta.key) for meta in listed if "/lithify/" not in meta.key}

    before = there()
    try:
        summary = copied(bucket)
        said = " ".join(one.reason for one in summary.failures)
    except LithifyError as error:
        said = str(error)
    assert reason in said
    assert there() == before


def test_a_name_that_is_taken_while_the_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = a_bucket(some())
    announce = copying.announce

    def late(*place: Any) -> None:
        taken(bucket)
        announce(*place)

    monkeypatch.setattr("lithify.datasets.kafka.buckets.topic_copy.announce", late)
    with pytest.raises(Refused, match=r"a topic orders.v2 (was created|exists)"):
        copied(bucket)
    assert told(bucket)["id"] == "another"


def with_another(bucket: Bucket) -> Bucket:
    """A second topic beside it, with as many partitions."""
    other = replace(bucket, name="others", id="two")
    for number in range(bucket.partitions):
        numbered(other, number).produce(*some(7 + number))
    key = f"{bucket.root}/clusters/c/meta.json"
    document = json.loads(bucket.store.get(key))
    document["topics"]["others"] = {**document["topics"]["orders"], "id": other.id}
    bucket.store.put(key, json.dumps(document).encode())
    return other


@pytest.mark.parametrize("moment", [("create", f"/copies/{NEW}/"), ("replace", "/meta.json")])
def test_two_topics_are_copied_to_one_name(moment: tuple[str, str]) -> None:
    """The second one is refused, and has written nothing of the new topic."""
    bucket = a_bucket(some())
    other = with_another(bucket)
    refused: list[str] = []

    def come() -> None:
        before = {meta.key for meta in bucket.store.list(bucket.root)}
        with pytest.raises(Refused, match="choose another name") as raised:
            copied(other)
        refused.append(str(raised.value))
        written = {meta.key for meta in bucket.store.list(bucket.root)} - before
        assert all("/lithify/others/copies/" in key for key in written)

    once = Once(moment[0], come, of=moment[1])
    assert not copied(bucket, FaultyStore(bucket.store, once)).failures
    come()
    assert len(refused) == 2
    same_log(bucket)


def test_a_copy_that_was_begun_without_a_claim_asks_whose_the_name_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a version that made none, or the claim was deleted. Another topic has it meanwhile, and wins."""
    bucket = a_bucket(some(), partitions=2)
    numbered(bucket, 1).produce(*some(6))
    other = with_another(bucket)

    def die_begun(_: int, call: Call) -> StoreFault | None:
        is_state = f"/orders/copies/{NEW}/_lithify/state/" in call.key
        return StoreFault.CRASH_AFTER if call.method == "create" and is_state else None

    with pytest.raises(Crash):
        copied(bucket, FaultyStore(bucket.store, die_begun))
    bucket.store.delete(f"{bucket.root}/clusters/c/lithify/{NEW}/{copying.CLAIM}")
    with monkeypatch.context() as patched:
        patched.setattr(copying._Copying, "carry_out", refuse_second(copying._Copying.carry_out))
        assert copied(other).failures
    before = copy_of(bucket).contents()
    assert before
    with pytest.raises(Refused, match=r"the name orders\.v2 is already used by a copy of others"):
        copied(bucket)
    assert copy_of(bucket).contents() == before
    assert not copied(other).failures
    for number in (0, 1):
        assert numbered(copy_of(bucket), number).bases()[-1] == numbered(other, number).bases()[-1]


def refuse_second(carry_out: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """It is away for the second partition."""

    def refusing(self: Any) -> Any:
        if self._task.number == 1:
            raise StoreUnavailable("away", "away")
        return carry_out(self)

    return refusing


def test_who_dies_behind_the_claim_goes_on_with_it() -> None:
    bucket = a_bucket(some())
    copying.claim_name(bucket.store, bucket.topic, copy_of(bucket).topic)
    copied(bucket)
    same_log(bucket)


def test_a_topic_that_is_copied_again_under_the_name_of_a_deleted_one_has_an_id_of_its_own() -> None:
    bucket = a_bucket(some())
    copied(bucket)
    first = told(bucket)["id"]
    for meta in [*bucket.store.list(copy_of(bucket).topic), *bucket.store.list(own_folder(bucket))]:
        bucket.store.delete(meta.key)
    bucket.put_metadata()
    copied(bucket)
    assert told(bucket)["id"] != first


def own_folder(bucket: Bucket) -> str:
    return f"{bucket.root}/clusters/c/lithify/orders"


def test_a_claim_that_is_created_just_then_is_asked_for_again() -> None:
    """S3 answers a create with 409 while another is under way, which may come to nothing."""
    bucket = a_bucket(some())
    tries = 0

    class Busy(WrappedStore):
        def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
            nonlocal tries
            if call.method == "create" and call.key.endswith(copying.CLAIM):
                tries += 1
                if tries == 1:
                    raise ObjectExists(f"{call.key}: 409")
            return action()

    copied(bucket, Busy(bucket.store))
    assert tries == 2
    same_log(bucket)


@pytest.mark.parametrize("damaged", [b"", b"[]", b'{"of": 1}', b"[" * 100_000])
def test_a_damaged_claim_is_told_of(damaged: bytes) -> None:
    bucket = a_bucket(some())
    bucket.store.put(f"{bucket.root}/clusters/c/lithify/{NEW}/{copying.CLAIM}", damaged)
    with pytest.raises(CorruptObject, match=copying.CLAIM):
        copied(bucket)
    assert not copy_of(bucket).contents()


def test_the_topic_is_made_again_before_the_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was copied is another one's then."""
    bucket = a_bucket(some())
    announce = copying.announce

    def late(*place: Any) -> None:
        of_another_id(bucket)
        announce(*place)

    monkeypatch.setattr("lithify.datasets.kafka.buckets.topic_copy.announce", late)
    with pytest.raises(Refused, match=r"orders was deleted and created again meanwhile"):
        copied(bucket)
    assert NEW not in json.loads(bucket.store.get(f"{bucket.root}/clusters/c/meta.json"))["topics"]


def test_the_broker_writes_its_metadata_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it writes is lost."""
    bucket = a_bucket(some())
    wrote = False

    def decide(_: int, call: Call) -> None:
        nonlocal wrote
        if call.method == "replace" and call.key.endswith("meta.json") and not wrote:
            wrote = True
            document = json.loads(bucket.store.get(call.key))
            document["producers"] = {"7": {}}
            bucket.store.put(call.key, json.dumps(document).encode())

    copied(bucket, FaultyStore(bucket.store, decide))
    assert wrote
    assert json.loads(bucket.store.get(f"{bucket.root}/clusters/c/meta.json"))["producers"] == {"7": {}}
    same_log(bucket)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"copy_to": "a/b"}, "is not a valid topic name"),
        ({"copy_to": ".."}, "is not a valid topic name"),
        ({"copy_to": "x" * 250}, "is not a valid topic name"),
        ({"copy_to": "orders"}, "is the topic itself"),
        ({"copy_to": NEW, "output": "memory://elsewhere"}, "omit --output"),
        ({"copy_to": NEW, "group": "memory://groups/x", "member": "eu"}, "belongs to a group of copies"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, str], reason: str) -> None:
    bucket = a_bucket(some(3))
    with pytest.raises(Refused, match=reason):
        opened_by_url(f"kafka+{bucket.store.url}/{bucket.topic}", settings)


def test_only_topics_in_a_bucket_are_copied() -> None:
    with pytest.raises(Refused, match="only such a topic can be copied"):
        opened_by_url("kafka+memory://no-broker/orders-0", {"copy_to": NEW})


def opened_by_url(url: str, settings: dict[str, str]) -> object:
    config = config_type().model_validate({"kafka": settings})
    clock = a_bucket([]).clock
    return KIND.open(url, config, clock, RandomIds(), lambda store: store, WaitPolicy())
