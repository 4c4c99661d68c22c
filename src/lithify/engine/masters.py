"""Check that a Spark master or Connect server is reachable, before anything is started or written for it."""

from __future__ import annotations

import socket

from lithify.base.errors import EngineDown
from lithify.engine import settings

CONNECT_LIMIT_S = 10


def check_master(master: str) -> None:
    """Raise `Refused` if `master` is not a Spark master, `EngineDown` if nothing listens at its address.
    Nothing is started."""
    settings.check_form(master)
    if settings.is_connect(master):
        from pyspark.sql.connect.client import DefaultChannelBuilder

        try:
            endpoints = [DefaultChannelBuilder(master).endpoint]
        except Exception:
            return  # opening the session reports the error
        what = "Spark Connect server"
    elif master.startswith("spark://"):
        endpoints, what = master.removeprefix("spark://").split(","), "Spark master"
    else:
        return
    problems = [problem for problem in map(why_silent, endpoints) if problem is not None]
    if len(problems) == len(endpoints):
        raise EngineDown(f"no {what} answers at {master}: {problems[0]}")


def why_silent(endpoint: str) -> str | None:
    """Return why `host:port` does not answer; `None` if it does."""
    try:
        socket.create_connection(_address(endpoint), CONNECT_LIMIT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)
