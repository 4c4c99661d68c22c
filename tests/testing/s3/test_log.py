"""What the log says, and what is computed from it."""

from __future__ import annotations

import time

import obstore

from lithify.testing.s3 import (
    Fate,
    LoggedRequest,
    Operation,
    S3Server,
    by_class,
    longest_chain,
    most_in_flight,
)
from tests.testing.s3.reaching import BUCKET, KEYS, rust


def request(
    start_s: float, end_s: float, operation: Operation = Operation.GET, key: str = "k"
) -> LoggedRequest:
    return LoggedRequest(operation, BUCKET, key, "", 0, 0, start_s, end_s, 200, Fate.ANSWERED, 1, "id")


def test_each_request_is_in_it(server: S3Server) -> None:
    store = rust(server.url)
    before_s = time.time()
    obstore.put(store, "a/k", b"0123456789")
    obstore.get_range(store, "a/k", start=2, end=5)
    obstore.list(store, "a").collect()
    obstore.delete(store, "a/k")
    put, get, listing, delete = server.log
    assert (put.operation, put.bucket, put.key, put.bytes_in, put.bytes_out) == (
        Operation.PUT,
        BUCKET,
        "a/k",
        10,
        0,
    )
    assert (get.operation, get.range, get.bytes_out, get.status) == (Operation.GET, "bytes=2-4", 3, 206)
    assert (listing.operation, listing.key) == (Operation.LIST, "a/")
    assert delete.operation in (Operation.DELETE, Operation.DELETE_MANY)
    assert {r.requester for r in server.log} == {KEYS["aws_access_key_id"]}
    times = [time_s for r in server.log for time_s in (r.start_s, r.end_s)]
    assert sorted(times) == times
    assert before_s <= times[0] <= times[-1] <= time.time()
    assert [LoggedRequest.from_line(r.to_line()) for r in server.log] == server.log
    server.forget()
    assert server.log == []


def test_classes() -> None:
    operations = [
        Operation.PUT,
        Operation.PUT_PART,
        Operation.COMPLETE_UPLOAD,
        Operation.LIST,
        Operation.HEAD,
    ]
    log = [request(0, 1, operation) for operation in operations]
    log += [request(0, 1, key="data/1"), request(0, 1, key="data/2"), request(0, 1, key="state")]
    assert by_class(log, lambda key: key.startswith("data/")) == {
        "PUT": 3,
        "LIST": 1,
        "HEAD": 1,
        "data GET": 2,
        "control GET": 1,
    }


def test_the_longest_chain_is_of_requests_that_wait_for_each_other() -> None:
    one_after_the_other = [request(n, n + 0.9) for n in range(5)]
    beside_them = [request(0, 4.5), request(0.1, 2.5), request(2.6, 4.4)]
    assert longest_chain(beside_them + one_after_the_other) == one_after_the_other
    assert len(longest_chain(beside_them)) == 2
    assert longest_chain([]) == []


def test_requests_in_flight() -> None:
    assert most_in_flight([]) == 0
    assert most_in_flight([request(0, 1), request(1, 2), request(2, 3)]) == 1
    assert most_in_flight([request(0, 10), request(1, 4), request(2, 3), request(5, 6)]) == 3
