"""How slow and flaky a server is: a value that can be replaced while the server runs.

For each request, chance decides whether and how it fails (its fate), and how long it takes. Latency is the
time from the arrival of the request to the first byte of the answer. Shares are between 0 and 1 and exclude
each other; an outage is the fate of all requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from lithify.testing.s3.requests import S3Verb

_SIGMAS_OF_P99 = 2.3263


class Latency(NamedTuple):
    """Milliseconds: always `median_ms`, or log-normal if one request in a hundred takes more than
    `p99_ms`."""

    median_ms: float
    p99_ms: float | None = None

    def draw_s(self, rng: random.Random) -> float:
        if self.p99_ms is None or not self.median_ms:
            return self.median_ms / 1000
        sigma = math.log(self.p99_ms / self.median_ms) / _SIGMAS_OF_P99
        return self.median_ms / 1000 * math.exp(sigma * rng.gauss(0, 1))


class Fate(StrEnum):
    """The outcome of a request."""

    ANSWERED = "answered"
    SLOWED_DOWN = "503 SlowDown; nothing happened"
    LOST_REQUEST = "the connection is reset; nothing happened"
    LOST_ANSWER = "it took effect; the connection is reset before the answer"
    CUT_ANSWER = "it took effect; the connection is reset in the middle of the answer"
    HUNG = "nothing happened, and no answer ever comes"
    ABANDONED = "the client closed the connection before the answer"


class Outage(StrEnum):
    """How all requests fail during an outage."""

    SLOW_DOWN = "slow-down"
    RESET = "reset"
    """Connections can be opened, but each request resets its connection."""
    HANG = "hang"


_FATES = {
    Outage.SLOW_DOWN: Fate.SLOWED_DOWN,
    Outage.RESET: Fate.LOST_REQUEST,
    Outage.HANG: Fate.HUNG,
}


@dataclass(frozen=True, slots=True)
class Weather:
    """The default is perfect weather."""

    latency: Mapping[S3Verb, Latency] = field(default_factory=dict)
    """Latency by verb; missing verbs have none."""
    bandwidth: float | None = None
    """Bytes per second of each connection, in each direction. An upload takes effect when its bytes would
    have arrived."""
    total_bandwidth: float | None = None
    """Bytes per second of all connections together, in each direction."""
    slowed_down: float = 0.0
    """Share of requests answered by 503 SlowDown."""
    lost_requests: float = 0.0
    """Share of requests whose connection is reset before they take effect."""
    lost_answers: float = 0.0
    """Share of requests whose connection is reset after they took effect, instead of an answer."""
    cut_answers: float = 0.0
    """Share of requests whose connection is reset in the middle of the answer."""
    hung: float = 0.0
    """Share of requests never answered, while the connection stays open."""
    outage: Outage | None = None
    """Lasts until it is removed."""

    @property
    def is_limited(self) -> bool:
        """Return whether bandwidth is limited."""
        return self.bandwidth is not None or self.total_bandwidth is not None

    def fate(self, rng: random.Random) -> Fate:
        if self.outage is not None:
            return _FATES[self.outage]
        if not (self.slowed_down or self.lost_requests or self.lost_answers or self.cut_answers or self.hung):
            return Fate.ANSWERED
        shares = (
            (Fate.SLOWED_DOWN, self.slowed_down),
            (Fate.LOST_REQUEST, self.lost_requests),
            (Fate.LOST_ANSWER, self.lost_answers),
            (Fate.CUT_ANSWER, self.cut_answers),
            (Fate.HUNG, self.hung),
        )
        left = rng.random()
        for fate, share in shares:
            left -= share
            if left < 0:
                return fate
        return Fate.ANSWERED

    def latency_s(self, verb: S3Verb, rng: random.Random) -> float:
        found = self.latency.get(verb)
        return found.draw_s(rng) if found is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def changed(self, document: Mapping[str, Any]) -> Weather:
        """Return this weather with the fields in `document` replaced, in the form of `to_json`. Raise
        `ValueError` for unknown fields."""
        unknown = document.keys() - {known.name for known in fields(self)}
        if unknown:
            raise ValueError(f"no such weather: {sorted(unknown)}")
        changes = dict(document)
        if "latency" in changes:
            changes["latency"] = {S3Verb(verb): Latency(*value) for verb, value in changes["latency"].items()}
        if changes.get("outage") is not None:
            changes["outage"] = Outage(changes["outage"])
        return replace(self, **changes)


def latency_of_all(median_ms: float, p99_ms: float | None = None) -> dict[S3Verb, Latency]:
    return dict.fromkeys(S3Verb, Latency(median_ms, p99_ms))


def parse_latency(text: str) -> dict[S3Verb, Latency]:
    """Parse `MEDIAN[:P99]` for all verbs, or `VERB=MEDIAN[:P99],…`, in milliseconds. Raise `ValueError` for
    anything else."""
    if "=" not in text:
        return latency_of_all(*_parse_one(text))
    pairs = (item.partition("=") for item in text.split(","))
    return {S3Verb(verb.strip().upper()): _parse_one(value) for verb, _, value in pairs}


def _parse_one(text: str) -> Latency:
    median, _, p99 = text.partition(":")
    return Latency(float(median), float(p99) if p99 else None)
