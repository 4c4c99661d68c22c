"""Every verb of a store, through a network that fails in every way it can."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from lithify.base.events import Event
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from lithify.store.versions import Version, VersionConflict, VersionedFiles
from lithify.testing.s3 import S3Server, Weather
from tests.outages import is_told_with_its_end
from tests.s3 import S3, store_options
from tests.store.flaky import RESETS, Asked, Fault, first, flaky, often
from tests.store.test_remote import Request, between

WITHIN = (Fault.RESET_WITHIN, Fault.CLOSE_WITHIN, Fault.HANG_WITHIN)
FAULTS = [fault for fault in Fault if fault not in (Fault.NONE, Fault.HANG)]
BODY = b"0123456789" * 100


def hasty(options: dict[str, str]) -> dict[str, str]:
    """What hangs is cut off soon."""
    return {**options, "read_timeout": "500ms"}


def missing(store: ObjectStore) -> str:
    with pytest.raises(ObjectNotFound):
        store.get("nothing")
    return "missing"


def ranged(store: ObjectStore) -> bytes:
    target = bytearray(10)
    store.get_range_into("there", 5, memoryview(target))
    return bytes(target)


READS: dict[str, tuple[str, Callable[[ObjectStore], object], object]] = {
    "get": ("GET", lambda store: store.get("there"), BODY),
    "get_range": ("GET", lambda store: store.get_range("there", 5, 10), BODY[5:15]),
    "get_range_into": ("GET", ranged, BODY[5:15]),
    "get_buffer": ("GET", lambda store: bytes(store.get_buffer("there", 5, 10)), BODY[5:15]),
    "head": ("HEAD", lambda store: store.head("there").size, len(BODY)),
    "list": ("GET", lambda store: [meta.key for meta in store.list("")], ["there"]),
    "a missing one": ("GET", missing, "missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", READS)
def test_a_read_survives(s3: S3, verb: str, fault: Fault) -> None:
    method, read, expected = READS[verb]
    bucket, asked = s3.bucket(), list[Asked]()
    open_store(f"s3://{bucket}", s3.options)[0].put("there", BODY)
    with flaky(s3, first(2, fault, method), asked) as options:
        assert read(open_store(f"s3://{bucket}", hasty(options))[0]) == expected
    least = 1 if fault in WITHIN and method == "HEAD" else 3
    assert least <= len(asked) <= 4, "one more where an answer was so slow that the question was asked again"


@pytest.mark.parametrize("fault", FAULTS)
def test_writes_survive(s3: S3, fault: Fault) -> None:
    """Those that may have landed are told from others' by who must know."""
    bucket = s3.bucket()
    url, directly = f"s3://{bucket}", open_store(f"s3://{bucket}", s3.options)[0]
    with flaky(s3, first(1, fault, "PUT")) as options:
        open_store(url, hasty(options))[0].put("put", BODY)
    with flaky(s3, first(1, fault, "PUT")) as options:
        files = VersionedFiles(open_store(url, hasty(options))[0], "m", ".m", "gc/m")
        assert files.publish(None, BODY) == Version(1, BODY)
    with flaky(s3, first(1, fault, "POST")) as options:
        open_store(url, hasty(options))[0].delete("put")
    with (
        flaky(s3, first(1, fault, "PUT")) as options,
        open_store(url, hasty(options))[0].open_writer("streamed") as writer,
    ):
        writer.write(BODY)
        writer.commit()
    assert [meta.key for meta in directly.list("")] == [files.key(1), "streamed"]


@pytest.mark.parametrize("fault", [Fault.RESET_AFTER, Fault.RESET_BEFORE])
def test_a_replace_whose_answer_was_lost_finds_its_own(s3: S3, fault: Fault) -> None:
    url = f"s3://{s3.bucket()}"
    directly = open_store(url, s3.options)[0]
    directly.put("lease", b"old")
    etag = directly.head("lease").etag
    assert etag is not None
    with flaky(s3, first(1, fault, "PUT")) as options:
        store = open_store(url, options)[0]
        if fault is Fault.RESET_BEFORE:
            store.replace("lease", b"new", etag)
        else:
            with pytest.raises(PreconditionFailed):
                store.replace("lease", b"new", etag)
    assert directly.get("lease") == b"new"


def test_the_object_of_another_is_not_taken_for_ones_own(s3: S3) -> None:
    url = f"s3://{s3.bucket()}"
    VersionedFiles(open_store(url, s3.options)[0], "m", ".m", "gc/m").publish(None, BODY)
    with flaky(s3, first(1, Fault.RESET_AFTER, "PUT")) as options, pytest.raises(VersionConflict):
        VersionedFiles(open_store(url, options)[0], "m", ".m", "gc/m").publish(None, BODY)


def test_answers_are_not_asked_for_again(s3: S3) -> None:
    url, asked = f"s3://{s3.bucket()}", list[Asked]()
    open_store(url, s3.options)[0].put("there", BODY)
    with flaky(s3, often(0, ()), asked) as options:
        store = open_store(url, options)[0]
        with pytest.raises(ObjectExists):
            store.create("there", b"")
        with pytest.raises(PreconditionFailed):
            store.replace("there", b"", '"no such"')
        with pytest.raises(StoreError, match=r"416|range"):
            store.get_range("there", 10_000, 10)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [
        (403, "AccessDenied", 1),
        (401, "Unauthorized", 1),
        (400, "InvalidRequest", 1),
        (501, "NotImplemented", 1),
        (301, "PermanentRedirect", 1),
        (403, "RequestTimeTooSkewed", 3),
        (400, "RequestTimeout", 3),
        (408, "RequestTimeout", 3),
        (429, "TooManyRequests", 3),
        (504, "GatewayTimeout", 3),
    ],
)
def test_which_answers_may_be_better_next_time(s3: S3, status: int, code: str, tries: int) -> None:
    requests = []

    def answer(request: Request) -> tuple[int, bytes]:
        requests.append(request.method)
        return status, f"<Error><Code>{code}</Code></Error>".encode()

    with between(s3, answer) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", {**options, "max_retries": "2"})
        with pytest.raises(StoreError) as caught:
            store.get("there")
    assert len(requests) == tries
    assert isinstance(caught.value, StoreUnavailable) == (tries > 1)


def test_nobody_listens_and_the_cause_is_told_at_the_end(s3: S3) -> None:
    told: list[Event] = []
    options = {**s3.options, "aws_endpoint": "http://127.0.0.1:1"}
    store, _ = open_store("s3://bucket", options, WaitPolicy(0.3, "s3://bucket/db", told.append))
    with pytest.raises(StoreUnavailable, match=r"(?i)get x: connection refused.*waited for the store"):
        store.get("x")
    assert told == []


def test_reads_that_hang_cost_little_and_are_told(s3: S3) -> None:
    """The first two of them; the third is the second that is made beside it."""
    url, told = f"s3://{s3.bucket()}", list[Event]()
    open_store(url, s3.options)[0].put("there", BODY)
    with flaky(s3, first(2, Fault.HANG, "GET")) as options:
        store = open_store(url, options, WaitPolicy(60.0, "db", told.append))[0]
        assert store.get("there") == BODY
    assert is_told_with_its_end(told)


@pytest.mark.parametrize(
    ("within", "read"),
    [
        ("hangs", lambda store: store.get("hangs")),
        ("hangs", lambda store: store.get_range("hangs", 0, len(BODY))),
        ("list-type", lambda store: [meta.key for meta in store.list("")]),
    ],
)
def test_a_read_that_hangs_while_others_are_answered_is_asked_for_again(
    s3: S3, within: str, read: Callable[[ObjectStore], object]
) -> None:
    """Long before its connection is cut off."""
    url, over = f"s3://{s3.bucket()}", threading.Event()
    directly = open_store(url, s3.options)[0]
    for key in ("hangs", "there"):
        directly.put(key, BODY)
    expected = read(directly)
    with flaky(s3, first(1, Fault.HANG, "GET", within)) as options, ThreadPoolExecutor(1) as pool:
        patient = {**options, "read_timeout": "1h", "timeout": "1h"}
        store = open_store(url, patient)[0]

        def ask_others() -> None:
            while not over.wait(0.1):
                assert store.get_range("there", 0, len(BODY)) == BODY

        others = pool.submit(ask_others)
        assert read(store) == expected
        over.set()
        others.result()


def test_what_hangs_in_the_middle_is_told_before_it_is_cut_off(s3: S3) -> None:
    url, told = f"s3://{s3.bucket()}", list[Event]()
    open_store(url, s3.options)[0].put("there", BODY)
    with flaky(s3, first(1, Fault.HANG_WITHIN, "GET")) as options:
        patient = {**options, "read_timeout": "6s"}
        assert open_store(url, patient, WaitPolicy(60.0, "db", told.append))[0].get("there") == BODY
    assert is_told_with_its_end(told)


def test_a_saturated_link_is_not_made_worse() -> None:
    """All get their answers at about the same time, long after one would have alone."""
    count, size = 16, 512 * 1024
    with S3Server() as server:
        server.create_bucket("b")
        store, _ = open_store("s3://b", store_options(server.url))
        store.put("there", bytes(size))
        server.weather = Weather(total_bandwidth=1.6e6)
        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(lambda _: store.get_range("there", 0, size), range(count)))
        assert set(answers) == {bytes(size)}
        asked = [entry for entry in server.log if entry.range]
    assert len(asked) == count


def test_a_healthy_listing_of_many_pages_is_made_once_and_is_no_outage(s3: S3) -> None:
    pages, begun, told = 45, list[str](), list[Event]()

    def page(request: Request) -> tuple[int, bytes]:
        at = re.search(r"continuation-token=(\d+)", request.path)
        n = int(at[1]) if at else 0
        if at is None:
            begun.append(request.path)
        time.sleep(0.12)
        meta = "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>a</ETag><Size>1</Size>"
        more = str(n + 1 < pages).lower()
        rest = f"<NextContinuationToken>{n + 1}</NextContinuationToken>" if n + 1 < pages else ""
        body = f"<Contents><Key>{n:04}</Key>{meta}</Contents>{rest}<IsTruncated>{more}</IsTruncated>"
        return 200, f"<ListBucketResult>{body}</ListBucketResult>".encode()

    with between(s3, page) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options, WaitPolicy(60.0, "db", told.append))
        assert len(list(store.list(""))) == pages
    assert (len(begun), told) == (1, [])


def test_a_write_that_hangs_is_cut_off_and_settled(s3: S3) -> None:
    url = f"s3://{s3.bucket()}"
    with flaky(s3, first(1, Fault.HANG, "PUT")) as options:
        files = VersionedFiles(open_store(url, hasty(options))[0], "m", ".m", "gc/m")
        assert files.publish(None, BODY) == Version(1, BODY)


def test_many_requests_at_a_tenth_of_resets(s3: S3) -> None:
    url = f"s3://{s3.bucket()}"
    with flaky(s3, often(0.1, RESETS)) as options:
        files = VersionedFiles(open_store(url, options)[0], "m", ".m", "gc/m")
        version = None
        for n in range(40):
            version = files.publish(version, b"%d" % n)
            assert files.latest() == version
        assert files.ids() == list(range(1, 41))
