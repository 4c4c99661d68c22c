"""What only a network shows: lost answers, conflict codes, silence, and uploads in parts."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import pytest

from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.store.multipart import PART_BYTES
from lithify.store.objects import ObjectStore
from lithify.store.remote import PROBE_KEY
from lithify.store.urls import open_store
from lithify.store.versions import Version, VersionConflict, VersionedFiles
from tests import serving
from tests.s3 import S3

Answer = Callable[["Request"], tuple[int, bytes] | None]


class Request:
    """A request on its way: what it is, and how to let it reach the server."""

    def __init__(self, handler: BaseHTTPRequestHandler, upstream: str) -> None:
        size = int(handler.headers.get("content-length", 0))
        self.method, self.path = handler.command, handler.path
        self.headers, self._body, self._upstream = dict(handler.headers), handler.rfile.read(size), upstream

    def forward(self) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(urlsplit(self._upstream).netloc, timeout=20)
        try:
            connection.request(self.method, self.path, self._body, self.headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()


@contextmanager
def between(
    s3: S3, answer: Answer, is_cut: Callable[[Request], bool] = lambda request: False
) -> Iterator[dict[str, str]]:
    """A proxy before the server. `answer` may replace an answer by another, and do anything before. The
    connection breaks in the middle of an answer that `is_cut`.

    Gives the options that reach the proxy.
    """

    class Handler(serving.Handler):
        def _handle(self) -> None:
            request = Request(self, s3.endpoint)
            replaced = answer(request)
            headers: dict[str, str] = {}
            if replaced is not None:
                status, body = replaced
            else:
                status, headers, body = request.forward()
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in (
                    "content-length",
                    "transfer-encoding",
                    "connection",
                    "date",
                    "server",
                ):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            if is_cut(request):
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            else:
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # names given by the base class

    with serving.serving(Handler) as url:
        yield {**s3.options, "aws_endpoint": url}


def versions(store: ObjectStore) -> VersionedFiles:
    return VersionedFiles(store, "db/manifest", ".manifest", "db/gc/manifest.boundary")


@pytest.mark.parametrize("author_of_version_1", ["nobody", "another party"])
def test_a_create_whose_answer_was_lost_is_told_from_anothers(s3: S3, author_of_version_1: str) -> None:
    """The server stores the object and then fails, so the client's own second try finds it."""
    bucket = s3.bucket()
    directly, _ = open_store(f"s3://{bucket}", s3.options)
    puts = []

    def lose_first_answer(request: Request) -> tuple[int, bytes] | None:
        if request.method != "PUT":
            return None
        puts.append(request.path)
        if len(puts) > 1:
            return None
        if author_of_version_1 != "nobody":
            versions(directly).publish(None, b"epoch 1")
        request.forward()
        return 503, b"busy"

    with between(s3, lose_first_answer) as options:
        files = versions(open_store(f"s3://{bucket}", options)[0])
        if author_of_version_1 == "nobody":
            assert files.publish(None, b"epoch 1") == Version(1, b"epoch 1")
        else:
            with pytest.raises(VersionConflict):
                files.publish(None, b"epoch 1")
    assert len(puts) == 2
    assert versions(directly).latest() == Version(1, b"epoch 1")


@pytest.mark.parametrize("status", [409, 412])
def test_both_codes_for_a_conflict_mean_that_the_object_exists(s3: S3, status: int) -> None:
    bucket = s3.bucket()
    body = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
    options = {"max_retries": "1"}
    with between(s3, lambda request: (status, body) if request.method == "PUT" else None) as reach:
        store, _ = open_store(f"s3://{bucket}", {**reach, **options})
        with pytest.raises(ObjectExists):
            store.create("object", b"x")


@pytest.mark.parametrize("conflicts", [1, 1000])
def test_a_replace_that_meets_another_write_is_made_again(s3: S3, conflicts: int) -> None:
    """S3 says 409 while another write ends, although the etag may still be right."""
    bucket, puts = s3.bucket(), list[str]()
    directly, _ = open_store(f"s3://{bucket}", s3.options)
    directly.put("lease", b"old")
    etag = directly.head("lease").etag
    assert etag is not None

    def conflict(request: Request) -> tuple[int, bytes] | None:
        puts.append(request.method)
        body = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
        return (409, body) if len(puts) <= conflicts else None

    with between(s3, conflict) as options:
        store, _ = open_store(f"s3://{bucket}", options)
        if conflicts == 1:
            store.replace("lease", b"new", etag)
        else:
            with pytest.raises(PreconditionFailed):
                store.replace("lease", b"new", etag)
    assert directly.get("lease") == (b"new" if conflicts == 1 else b"old")


def test_a_failing_server_is_given_up_after_the_retries(s3: S3) -> None:
    requests = []

    def busy(request: Request) -> tuple[int, bytes]:
        requests.append(request.method)
        return 503, b"busy"

    with between(s3, busy) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", {**options, "max_retries": "2"})
        with pytest.raises(StoreError, match=r"get some/object: .*503"):
            store.get("some/object")
    assert len(requests) == 3


def test_a_silent_server_is_given_up_after_the_timeout(s3: S3) -> None:
    awake = threading.Event()

    def sleep(_: Request) -> tuple[int, bytes]:
        awake.wait(20)
        return 503, b""

    with between(s3, sleep) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", {**options, "max_retries": "0", "timeout": "200ms"})
        with pytest.raises(StoreError, match="get some/object"):
            store.get("some/object")
        awake.set()


def test_a_refused_access_is_an_error_with_its_cause(s3: S3) -> None:
    denied = b"<Error><Code>AccessDenied</Code></Error>"
    with between(s3, lambda _: (403, denied)) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        with pytest.raises(StoreError, match="AccessDenied") as caught:
            store.get("secret")
    assert not isinstance(caught.value, ObjectNotFound)
    assert s3.options["aws_secret_access_key"] not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "part_bytes", "expected"),
    [
        (PART_BYTES // 2, None, ["PUT"]),
        (2 * PART_BYTES + 1, None, ["POST"] * 2 + ["PUT"] * 3),
        (2 * PART_BYTES - 1, 2 * PART_BYTES, ["PUT"]),
        (4 * PART_BYTES + 1, 2 * PART_BYTES, ["POST"] * 2 + ["PUT"] * 3),
    ],
)
def test_small_uploads_take_one_request_and_large_ones_go_in_parts(
    s3: S3, size: int, part_bytes: int | None, expected: list[str]
) -> None:
    methods: list[str] = []

    def note(request: Request) -> None:
        if PROBE_KEY not in request.path:  # asked while a busy machine lets an upload wait
            methods.append(request.method)

    with between(s3, note) as options:
        store, _ = open_store(f"s3://{s3.bucket()}", options)
        with store.open_writer("object", part_bytes) as writer:
            writer.write(bytes(size))
            writer.commit()
    assert sorted(methods) == expected


READS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("db/k"),
    "get with meta": lambda store: store.get_with_meta("db/k")[0],
    "range": lambda store: store.get_range("db/k", 10, 5000),
    "list": lambda store: [meta.key for meta in store.list("db")],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("every", [2, 3])
def test_answers_that_break_off_are_asked_for_again(
    s3: S3, read: Callable[[ObjectStore], object], every: int
) -> None:
    """All but one of `every`: also the answer that goes on where another broke off."""
    bucket = s3.bucket()
    directly, _ = open_store(f"s3://{bucket}", s3.options)
    directly.put("db/k", bytes(range(256)) * 40)
    gets = []

    def is_cut(request: Request) -> bool:
        gets.append(request.path)
        return len(gets) % every != 0

    with between(s3, lambda request: None, is_cut) as options:
        store, _ = open_store(f"s3://{bucket}", options)
        assert read(store) == read(directly)
        assert len(gets) > 1


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_answers_that_always_break_off(s3: S3, read: Callable[[ObjectStore], object]) -> None:
    bucket = s3.bucket()
    directly, _ = open_store(f"s3://{bucket}", s3.options)
    directly.put("db/k", bytes(range(256)) * 40)
    with between(s3, lambda request: None, lambda request: True) as options:
        store, _ = open_store(f"s3://{bucket}", {**options, "max_retries": "1"})
        with pytest.raises(StoreError, match="body"):
            read(store)


@pytest.mark.parametrize(("options", "is_signed"), [({}, True), ({"aws_unsigned_payload": "true"}, False)])
def test_without_encryption_payloads_are_signed_unless_that_is_not_wanted(
    s3: S3, options: dict[str, str], is_signed: bool
) -> None:
    hashes: list[str] = []

    def note(request: Request) -> None:
        if request.method == "PUT":
            hashes.append({k.lower(): v for k, v in request.headers.items()}["x-amz-content-sha256"])

    with between(s3, note) as reach:
        store, _ = open_store(f"s3://{s3.bucket()}", {**reach, **options})
        store.put("object", b"x")
    assert (hashes != ["UNSIGNED-PAYLOAD"]) is is_signed
    assert len(hashes) == 1
