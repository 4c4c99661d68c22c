"""Checks that a master, or a Connect server, is reachable, before anything is started or written for it."""

from __future__ import annotations

import socket

from lithify.base.errors import EngineDown
from lithify.engine import settings

CONNECT_LIMIT_S = 10


def check_master(master: str) -> None:
    """Raise `Refused` when it is not a master, `EngineDown` when its address does not listen; nothing is
    started."""
    settings.check_form(master)
    if settings.is_connect(master):
        from pyspark.sql.connect.client import DefaultChannelBuilder

        try:
            endpoints = [DefaultChannelBuilder(master).endpoint]
        except Exception:
            return  # whoever opens the session says what is wrong with it
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
