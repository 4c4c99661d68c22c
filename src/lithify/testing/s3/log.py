"""The log of a server's requests, and its evaluation: classes, requests in flight, serial chains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lithify.testing.s3.requests import Operation
from lithify.testing.s3.weather import Fate


class LoggedRequest(NamedTuple):
    """One request that has ended. Times are in seconds since 1970."""

    operation: Operation
    bucket: str
    key: str
    """The key, or the prefix of a listing."""
    range: str
    """The header as it was sent; empty for the whole object."""
    bytes_in: int
    """Size of the request's body."""
    bytes_out: int
    """Size of the answer's body."""
    start_s: float
    """When the request's head had arrived."""
    end_s: float
    """When the last byte of the answer was handed to the network."""
    status: int
    """0 if no answer was begun."""
    fate: Fate
    connection: int
    """Number of the connection."""
    requester: str
    """The access key id of the signature; empty if not signed."""

    def to_line(self) -> str:
        return json.dumps(self._asdict()) + "\n"

    @classmethod
    def from_line(cls, line: str) -> LoggedRequest:
        facts = json.loads(line)
        facts["operation"], facts["fate"] = Operation(facts["operation"]), Fate(facts["fate"])
        return cls(**facts)


DATA_GET, CONTROL_GET = "data GET", "control GET"
PUT, LIST, HEAD, DELETE = "PUT", "LIST", "HEAD", "DELETE"
_CLASSES = {
    Operation.PUT: PUT,
    Operation.COPY: PUT,
    Operation.PUT_PART: PUT,
    Operation.BEGIN_UPLOAD: PUT,
    Operation.COMPLETE_UPLOAD: PUT,
    Operation.LIST: LIST,
    Operation.LIST_UPLOADS: LIST,
    Operation.HEAD: HEAD,
    Operation.DELETE: DELETE,
    Operation.DELETE_MANY: DELETE,
    Operation.ABORT_UPLOAD: DELETE,
}


def by_class(requests: Iterable[LoggedRequest], is_data: Callable[[str], bool]) -> Counter[str]:
    """Count requests by class, as stores bill them. `is_data` distinguishes keys of data from keys of control
    files."""
    counts: Counter[str] = Counter()
    for request in requests:
        if request.operation is Operation.GET:
            counts[DATA_GET if is_data(request.key) else CONTROL_GET] += 1
        elif request.operation in _CLASSES:
            counts[_CLASSES[request.operation]] += 1
    return counts


def longest_chain(requests: Iterable[LoggedRequest]) -> list[LoggedRequest]:
    """Return the longest chain of requests in which each began after the previous one had ended: each
    millisecond of latency delays the whole by the chain's length. Found by always taking the request that
    ends first."""
    chain: list[LoggedRequest] = []
    for request in sorted(requests, key=lambda r: r.end_s):
        if not chain or request.start_s >= chain[-1].end_s:
            chain.append(request)
    return chain


def most_in_flight(requests: Sequence[LoggedRequest]) -> int:
    changes = [(request.start_s, 1) for request in requests] + [(request.end_s, -1) for request in requests]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
