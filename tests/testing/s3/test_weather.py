"""Slow, flaky and down. Times are only judged from below: a busy machine makes everything slower."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import obstore
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from obstore.exceptions import BaseError

from lithify.testing.s3 import Fate, Latency, Outage, S3Server, S3Verb, Weather, latency_of_all
from tests.engine.waiting import wait_until
from tests.testing.s3.reaching import BUCKET, boto, connected, rust

EXACT = 0.98
"""The server sends a piece up to half a millisecond early rather than wait for so little."""
BROKEN = (ConnectionClosedError, ResponseStreamingError, IncompleteReadError)


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    start_s = time.monotonic()
    yield
    assert time.monotonic() - start_s >= seconds * EXACT


def fates(server: S3Server) -> list[Fate]:
    return [request.fate for request in server.log]


def test_latency_by_verb(server: S3Server) -> None:
    client = boto(server.url)
    server.weather = Weather(
        latency={S3Verb.GET: Latency(120), S3Verb.PUT: Latency(60), S3Verb.LIST: Latency(90)}
    )
    with at_least(0.06):
        client.put_object(Bucket=BUCKET, Key="k", Body=b"v")
    with at_least(0.12):
        client.get_object(Bucket=BUCKET, Key="k")["Body"].read()
    with at_least(0.09):
        client.list_objects_v2(Bucket=BUCKET)
    for request, least_s in zip(server.log, (0.06, 0.12, 0.09), strict=True):
        assert request.end_s - request.start_s >= least_s * EXACT


def test_a_write_takes_effect_before_its_answer(server: S3Server) -> None:
    server.weather = Weather(latency={S3Verb.PUT: Latency(600_000)})
    with connected(server.url) as socket:
        socket.send(f"PUT /{BUCKET}/k HTTP/1.1\r\nContent-Length: 1\r\n\r\nv".encode())
        wait_until(lambda: bool(obstore.list(rust(server.url)).collect()))
    wait_until(lambda: Fate.ABANDONED in fates(server))


def test_latencies_are_spread_as_asked() -> None:
    rng = random.Random(7)
    drawn = sorted(Latency(20, 100).draw_s(rng) for _ in range(10_000))
    assert drawn[5_000] == pytest.approx(0.020, rel=0.05)
    assert drawn[9_900] == pytest.approx(0.100, rel=0.10)


def test_bandwidth_of_a_connection(server: S3Server) -> None:
    data = random.Random(2).randbytes(1_000_000)
    server.weather = Weather(bandwidth=4e6)
    store = rust(server.url)
    with at_least(0.25):
        obstore.put(store, "k", data)
    with at_least(0.25):
        assert obstore.get(store, "k").bytes() == data


def test_two_connections_have_twice_the_bandwidth_of_one_but_not_of_all(server: S3Server) -> None:
    obstore.put(rust(server.url), "k", bytes(1_000_000))

    def spans(weather: Weather) -> float:
        """Seconds that two answers at once take, as the server knows them."""
        server.weather = weather
        server.forget()
        with ThreadPoolExecutor(2) as pool:
            for read in [pool.submit(lambda: obstore.get(rust(server.url), "k").bytes()) for _ in range(2)]:
                assert len(read.result()) == 1_000_000
        log = server.log
        return max(request.end_s for request in log) - min(request.start_s for request in log)

    assert spans(Weather(bandwidth=4e6)) >= 0.25 * EXACT
    assert spans(Weather(total_bandwidth=4e6)) >= 0.49 * EXACT


def test_slow_down(server: S3Server) -> None:
    client = boto(server.url)
    server.weather = Weather(slowed_down=1.0)
    with pytest.raises(ClientError, match="SlowDown"):
        client.put_object(Bucket=BUCKET, Key="k", Body=b"v")
    server.weather = Weather()
    assert client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0
    assert (server.log[0].status, server.log[0].fate) == (503, Fate.SLOWED_DOWN)


def test_a_lost_request_has_no_effect(server: S3Server) -> None:
    client = boto(server.url)
    server.weather = Weather(lost_requests=1.0)
    with pytest.raises(BROKEN):
        client.put_object(Bucket=BUCKET, Key="k", Body=b"v")
    server.weather = Weather()
    assert client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0


def test_a_lost_answer_has_one(server: S3Server) -> None:
    client = boto(server.url)
    server.weather = Weather(lost_answers=1.0)
    with pytest.raises(BROKEN):
        client.put_object(Bucket=BUCKET, Key="k", Body=b"v")
    server.weather = Weather()
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"v"


@pytest.mark.parametrize("size", [10, 100_000, 5_000_000])
def test_an_answer_that_is_cut(server: S3Server, size: int) -> None:
    client = boto(server.url)
    client.put_object(Bucket=BUCKET, Key="k", Body=bytes(size))
    server.weather = Weather(cut_answers=1.0)
    with pytest.raises(BROKEN):
        client.get_object(Bucket=BUCKET, Key="k")["Body"].read()
    cut = server.log[-1]
    assert cut.fate is Fate.CUT_ANSWER
    assert cut.bytes_out < size


def test_a_request_that_hangs(server: S3Server) -> None:
    client = boto(server.url, read_timeout=0.2)
    server.weather = Weather(hung=1.0)
    with pytest.raises(ReadTimeoutError):
        client.put_object(Bucket=BUCKET, Key="k", Body=b"v")
    server.weather = Weather()
    assert boto(server.url).list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0
    assert fates(server)[0] is Fate.HUNG


@pytest.mark.parametrize("outage", Outage)
def test_an_outage_begins_and_ends(server: S3Server, outage: Outage) -> None:
    client = boto(server.url, read_timeout=0.2)
    client.put_object(Bucket=BUCKET, Key="k", Body=b"1")
    server.weather = replace(server.weather, outage=outage)
    for _ in range(3):
        with pytest.raises((ClientError, *BROKEN, ReadTimeoutError)):
            client.put_object(Bucket=BUCKET, Key="k", Body=b"2")
    server.weather = replace(server.weather, outage=None)
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"1"


def test_shares_come_out_as_asked() -> None:
    weather = Weather(slowed_down=0.1, lost_requests=0.1, lost_answers=0.1, cut_answers=0.1, hung=0.1)
    rng = random.Random(3)
    counts = Counter(weather.fate(rng) for _ in range(10_000))
    assert counts[Fate.ANSWERED] == pytest.approx(5_000, rel=0.05)
    for fate in (Fate.SLOWED_DOWN, Fate.LOST_REQUEST, Fate.LOST_ANSWER, Fate.CUT_ANSWER, Fate.HUNG):
        assert counts[fate] == pytest.approx(1_000, rel=0.15)


def test_the_same_seed_gives_the_same_weather() -> None:
    def played(seed: int) -> list[Fate]:
        with S3Server(Weather(slowed_down=0.3, lost_requests=0.3), seed=seed) as server:
            server.create_bucket(BUCKET)
            for number in range(20):
                try:
                    obstore.put(rust(server.url), f"k{number}", b"v")
                except BaseError:
                    continue
            return fates(server)

    assert played(1) == played(1) != played(2)


def test_a_client_that_tries_again_gets_through(server: S3Server) -> None:
    server.weather = Weather(
        latency=latency_of_all(1), slowed_down=0.1, lost_requests=0.1, lost_answers=0.1, bandwidth=50e6
    )
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
    store = rust(server.url, max_retries=20, backoff=backoff)
    for number in range(30):
        obstore.put(store, f"k{number:02}", b"%d" % number)
    assert [obstore.get(store, f"k{number:02}").bytes() for number in range(30)] == [
        b"%d" % number for number in range(30)
    ]
    assert len(set(fates(server))) == 4


def test_weather_as_json() -> None:
    weather = Weather(latency={S3Verb.GET: Latency(20, 60)}, bandwidth=90e6, hung=0.5, outage=Outage.HANG)
    assert Weather().changed(weather.to_json()) == weather
    assert weather.changed({"outage": None}) == replace(weather, outage=None)
    with pytest.raises(ValueError, match="rain"):
        weather.changed({"rain": 1})
