"""What was asked of a server, and what can be told of it: classes, requests in flight, serial chains."""

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
    """Of a listing, its prefix."""
    range: str
    """The header as it was sent; empty: everything."""
    bytes_in: int
    """Of the body."""
    bytes_out: int
    """Of the body."""
    start_s: float
    """When its head had arrived."""
    end_s: float
    """When the last byte of the answer was handed to the network."""
    status: int
    """0: no answer was begun."""
    fate: Fate
    connection: int
    """Number of the connection."""
    requester: str
    """The access key id it was signed with; empty: not signed."""

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(self._asdict()) + "\n"

    @classmethod
    def from_line(cls, line: str) -> LoggedRequest:
        """What `to_line` wrote."""
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
    """How many requests of which class, as stores are paid for them. `is_data` tells keys of data from keys
    of files that control who does what."""
    counts: Counter[str] = Counter()
    for request in requests:
        if request.operation is Operation.GET:
            counts[DATA_GET if is_data(request.key) else CONTROL_GET] += 1
        elif request.operation in _CLASSES:
            counts[_CLASSES[request.operation]] += 1
    return counts


def longest_chain(requests: Iterable[LoggedRequest]) -> list[LoggedRequest]:
    """The most requests of which each began after the one before had ended: with every millisecond of
    latency, so many more pass before all is done. Found by always taking the one that ends first."""
    chain: list[LoggedRequest] = []
    for request in sorted(requests, key=lambda r: r.end_s):
        if not chain or request.start_s >= chain[-1].end_s:
            chain.append(request)
    return chain


def most_in_flight(requests: Sequence[LoggedRequest]) -> int:
    """The most requests that were in flight at once."""
    changes = [(request.start_s, 1) for request in requests] + [(request.end_s, -1) for request in requests]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
