"""Uploads that go on while their writer does, seen from the server's side."""

from __future__ import annotations

import gc
import threading

import pytest

from lithify.base.errors import ObjectNotFound, StoreError
from lithify.base.events import Event, WaitingForStore
from lithify.store import multipart
from lithify.store.multipart import PART_BYTES
from lithify.store.resilience import pace
from lithify.store.resilience.requests import Requests, Watch
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from lithify.testing.s3 import Outage, S3Server, Weather
from tests.outages import is_told_with_its_end
from tests.s3 import S3, store_options
from tests.store.flaky import Asked, Fault, flaky
from tests.store.test_remote import Request, between

PIECE = bytes(range(256)) * (PART_BYTES // 512)
"""Half a part."""


class Gate:
    """Lets nothing that writes pass until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.passed: list[str] = []

    def __call__(self, request: Request) -> None:
        if request.method in ("PUT", "POST"):
            self.is_open.wait(20)
            self.passed.append(request.method)


def test_a_writer_waits_for_no_answer(s3: S3) -> None:
    gate = Gate()
    with between(s3, gate) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        with store.open_writer("object") as writer:
            for _ in range(5):
                writer.write(PIECE)
            assert not gate.passed, "not even for the one that begins the upload"
            gate.is_open.set()
            writer.commit()
        assert store.get("object") == 5 * PIECE


def test_a_writer_waits_when_too_much_is_on_its_way(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "WAITING_BYTES", PART_BYTES)
    gate, accepted = Gate(), []
    waits = threading.Event()
    with between(s3, gate) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        writer = store.open_writer("object")

        def write() -> None:
            for number in range(12):
                if number == 8:
                    waits.set()
                writer.write(PIECE)
                accepted.append(number)
            writer.commit()

        thread = threading.Thread(target=write)
        thread.start()
        assert not waits.wait(1), "two pieces wait, two begin the upload, and one is being handed over"
        assert len(accepted) <= 6
        gate.is_open.set()
        thread.join(60)
        assert store.get("object") == 12 * PIECE


def test_a_part_that_is_refused_is_told_by_every_later_call(s3: S3) -> None:
    denied = b"<Error><Code>AccessDenied</Code></Error>"
    with between(s3, lambda request: (403, denied) if request.method == "PUT" else None) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        writer = store.open_writer("object")
        writer.write(PIECE)
        writer.write(PIECE)
        with pytest.raises(StoreError, match=r"object: .*AccessDenied"):
            writer.commit()
        with pytest.raises(StoreError):
            writer.commit()
        writer.abort()
        with pytest.raises(ObjectNotFound):
            store.get("object")


@pytest.mark.parametrize("pieces", [1, 2, 20])
def test_an_outage_in_the_middle_is_waited_for_and_told(pieces: int) -> None:
    """Of a small object, of one in two parts, and of one whose writer has to wait."""
    told, is_over = list[Event](), threading.Event()
    with S3Server() as server:
        server.create_bucket("b")

        def tell(event: Event) -> None:
            told.append(event)
            if isinstance(event, WaitingForStore):
                server.weather = Weather()
            else:
                is_over.set()

        store, _ = open_store("s3://b", store_options(server.url), WaitPolicy(60.0, "db", tell))
        server.weather = Weather(outage=Outage.SLOW_DOWN)
        with store.open_writer("object") as writer:
            for _ in range(pieces):
                writer.write(PIECE)
            writer.commit()
        assert store.get("object") == pieces * PIECE
        assert is_over.wait(20)
    assert is_told_with_its_end(told)
    assert isinstance(told[0], WaitingForStore)
    assert told[0].cause.startswith("503")


def test_a_part_that_hangs_is_sent_again_soon_where_parts_are_known_to_take_less(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first upload it would be cut off after two minutes."""
    monkeypatch.setattr(pace, "LIMITS_S", (10.0, 120.0))
    monkeypatch.setattr(pace, "_TIMES", 0.0)
    hangs, asked, is_over = threading.Event(), list[str](), threading.Event()

    def choose(request: Asked) -> Fault:
        asked.append(request.path)
        is_the_part = request.method == "PUT" and "partNumber=2" in request.path
        if not is_the_part or not hangs.is_set():
            return Fault.NONE
        hangs.clear()
        return Fault.HANG

    with flaky(s3, choose) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)

        def upload(key: str) -> None:
            with store.open_writer(key) as writer:
                for _ in range(5):
                    writer.write(PIECE)
                writer.commit()
            is_over.set()

        upload("first")
        is_over.clear()
        hangs.set()
        threading.Thread(target=upload, args=("second",), daemon=True).start()
        assert is_over.wait(60)
        assert store.get("second") == 5 * PIECE
    assert not hangs.is_set()
    assert len([path for path in asked if "/second?partNumber=2" in path]) > 1


def test_how_long_a_part_may_take() -> None:
    known = pace.UploadPace()
    assert (known.limit_s, known.patience_s) == (120.0, None), "nothing is known yet"
    known.note(0.2)
    assert (known.limit_s, known.patience_s) == (15.0, 3.0)
    known.note(3.0)
    assert (known.limit_s, known.patience_s) == (60.0, 12.0)
    known.note(0.2)
    assert known.limit_s == 60.0, "little was left to send"
    for _ in range(20):
        known.note(0.2)
    assert known.limit_s == 15.0, "the way has become quick"
    known.note(1000.0)
    assert known.limit_s == 120.0
    known.forget()
    assert (known.limit_s, known.patience_s) == (120.0, None), "one has failed"


def uploads() -> set[threading.Thread]:
    """The threads that send something."""
    return {thread for thread in threading.enumerate() if thread.name == "lithify-upload"}


def await_ends(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_writer_that_is_forgotten_is_aborted(s3: S3) -> None:
    others = uploads()
    store, _ = open_store(f"s3://{s3.bucket()}", store_options(s3.endpoint))
    writer = store.open_writer("object")
    for _ in range(8):
        writer.write(PIECE)
    mine = uploads() - others
    assert len(mine) == 1
    del writer
    gc.collect()
    await_ends(mine)
    assert list(store.list("")) == []


def test_an_interrupted_commit_shows_no_object_with_a_gap(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    others = uploads()

    class Interrupting(Watch):
        def look(self) -> None:
            raise KeyboardInterrupt

    with between(s3, gate) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        monkeypatch.setattr(Requests, "watch", lambda *_: Interrupting())
        writer = store.open_writer("object")
        for _ in range(8):
            writer.write(PIECE)
        with pytest.raises(KeyboardInterrupt), writer:
            writer.commit()
        gate.is_open.set()
        await_ends(uploads() - others)
        assert [meta.key for meta in store.list("")] == []


@pytest.mark.parametrize("pieces", [1, 7])
def test_uploads_survive_a_fifth_of_faults(pieces: int) -> None:
    share = 0.2 / 3
    with S3Server(seed=5) as server:
        server.create_bucket("b")
        store, _ = open_store("s3://b", store_options(server.url))
        server.weather = Weather(
            lost_requests=share, lost_answers=share, cut_answers=share, slowed_down=share
        )
        for n in range(5):
            with store.open_writer(f"object-{n}") as writer:
                for _ in range(pieces):
                    writer.write(PIECE)
                writer.commit()
        server.weather = Weather()
        assert {store.get(f"object-{n}") for n in range(5)} == {pieces * PIECE}


def test_an_upload_that_is_aborted_under_way_shows_nothing(s3: S3) -> None:
    gate = Gate()
    with between(s3, gate) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        with store.open_writer("object") as writer:
            for _ in range(6):
                writer.write(PIECE)
        gate.is_open.set()
        with pytest.raises(StoreError, match="closed"):
            writer.write(PIECE)
        assert [meta.key for meta in store.list("")] == []
