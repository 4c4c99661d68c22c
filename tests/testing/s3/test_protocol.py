"""What clients may send by HTTP that the ones of these tests do not, or not always."""

from __future__ import annotations

from lithify.testing.s3 import Fate, Operation, S3Server
from tests.engine.waiting import wait_until
from tests.testing.s3.reaching import BUCKET, connected


def put(key: str, body: bytes, *headers: str, length: bool = True) -> bytes:
    lines = [f"PUT /{BUCKET}/{key} HTTP/1.1", "Host: x", *headers]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(key: str) -> bytes:
    return f"GET /{BUCKET}/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_one_connection_for_many_requests_also_before_their_answers(server: S3Server) -> None:
    with connected(server.url) as socket:
        socket.send(put("k", b"1") + get("k") + put("k", b"22") + get("k"))
        answers = [socket.answer() for _ in range(4)]
    assert [status for status, _, _ in answers] == [200] * 4
    assert [body for _, _, body in answers] == [b"", b"1", b"", b"22"]
    assert len({request.connection for request in server.log}) == 1


def test_a_request_in_single_bytes(server: S3Server) -> None:
    with connected(server.url) as socket:
        for byte in put("k", b"abc"):
            socket.send(bytes([byte]))
        assert socket.answer()[0] == 200
        socket.send(get("k"))
        assert socket.answer()[2] == b"abc"


def test_a_body_that_waits_to_be_welcome(server: S3Server) -> None:
    head = put("k", b"", "Expect: 100-continue", "Content-Length: 5", length=False)
    with connected(server.url) as socket:
        socket.send(head)
        assert socket.answer()[0] == 100
        socket.send(b"hello" + get("k"))
        assert socket.answer()[0] == 200
        assert socket.answer()[2] == b"hello"


def test_a_body_of_unknown_length(server: S3Server) -> None:
    body = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\ntrailer: t\r\n\r\n"
    with connected(server.url) as socket:
        socket.send(put("k", b"", "Transfer-Encoding: chunked", length=False))
        for byte in body:
            socket.send(bytes([byte]))
        socket.send(get("k"))
        assert socket.answer()[0] == 200
        assert socket.answer()[2] == b"hello world"


SIGNED = b"5;chunk-signature=0a\r\nhello\r\n6;chunk-signature=0b\r\n world\r\n0;chunk-signature=0c\r\n"
STREAMING = "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


def test_signed_chunks_with_and_without_trailers(server: S3Server) -> None:
    trailers = b"x-amz-checksum-crc32:AAAA\r\nx-amz-trailer-signature:0d\r\n\r\n"
    headers = ("Content-Encoding: gzip,aws-chunked", "x-amz-decoded-content-length: 11")
    with connected(server.url) as socket:
        for key, body, more in (
            ("none", SIGNED + b"\r\n", (*headers, STREAMING)),
            ("trailers", SIGNED + trailers, (*headers, f"{STREAMING}-TRAILER")),
            ("unnamed", SIGNED + b"\r\n", (headers[1], STREAMING)),
        ):
            socket.send(put(key, body, *more) + get(key))
            assert socket.answer()[0] == 200
            status, answered, found = socket.answer()
            assert (status, found) == (200, b"hello world")
            assert answered.get("content-encoding") == (None if key == "unnamed" else "gzip")
    assert [r.bytes_in for r in server.log if r.operation is Operation.PUT] == [11] * 3


def test_chunks_that_are_none_are_refused(server: S3Server) -> None:
    with connected(server.url) as socket:
        for body in (SIGNED[:30], b"no chunks at all", SIGNED.replace(b"5;", b"4;") + b"\r\n"):
            headers = ("Content-Encoding: aws-chunked", "x-amz-decoded-content-length: 11")
            socket.send(put("k", body, *headers) + get("k"))
            assert socket.answer()[0] == 400
            assert socket.answer()[0] == 404


def test_what_is_no_http_is_refused(server: S3Server) -> None:
    for nonsense in (b"hello\r\n\r\n", b"x" * 70_000, put("k", b"", "Content-Length: many", length=False)):
        with connected(server.url) as socket:
            socket.send(nonsense)
            assert socket.answer()[0] == 400


def test_what_s3_can_do_and_this_cannot_is_said(server: S3Server) -> None:
    with connected(server.url) as socket:
        for asked in (f"GET /{BUCKET}?acl", f"GET /{BUCKET}/k?tagging", f"GET /{BUCKET}", "PUT /"):
            socket.send(f"{asked} HTTP/1.1\r\n\r\n".encode())
            status, _, body = socket.answer()
            assert status == 501
            assert b"<Code>NotImplemented</Code>" in body


def test_a_completed_upload_can_be_completed_again(server: S3Server) -> None:
    """Until another object is there."""
    with connected(server.url) as socket:
        socket.send(f"POST /{BUCKET}/k?uploads HTTP/1.1\r\n\r\n".encode())
        upload = socket.answer()[2].partition(b"<UploadId>")[2].partition(b"<")[0].decode()
        socket.send(put(f"k?partNumber=1&uploadId={upload}", b"abc"))
        etag = socket.answer()[1]["etag"]
        body = (
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>"
            f"<ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        )
        head = f"POST /{BUCKET}/k?uploadId={upload} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        complete = (head + body).encode()
        socket.send(complete + complete)
        assert socket.answer() == socket.answer()
        socket.send(put("k", b"other") + complete + get("k"))
        assert [socket.answer()[0] for _ in range(2)] == [200, 404]
        assert socket.answer()[2] == b"other"


def test_a_client_that_goes_away_is_in_the_log(server: S3Server) -> None:
    with connected(server.url) as socket:
        socket.send(put("k", bytes(30_000_000)))
        assert socket.answer()[0] == 200
        socket.send(get("k"))
    wait_until(lambda: len(server.log) == 2)
    assert server.log[1].fate is Fate.ABANDONED
    assert server.log[1].bytes_out < 30_000_000
