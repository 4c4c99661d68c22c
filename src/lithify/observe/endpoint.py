"""Where metrics can be read over HTTP. It asks nobody who they are, so it listens on the loopback address
unless the settings say otherwise."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from lithify.errors import Refused
from lithify.observe.logs import FIELDS, LOGGER
from lithify.observe.metrics import Metrics


@contextmanager
def served(metrics: Metrics, host: str, port: int) -> Iterator[None]:
    """Serve `metrics` until the end of the block; `Refused` when nothing can listen there."""
    from prometheus_client import disable_created_metrics, start_http_server

    disable_created_metrics()  # type: ignore[no-untyped-call]  # the package does not type it
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise Refused(
            f"the metrics endpoint cannot listen on {host}:{port}: {error.strerror or error}; "
            "give another port (--metrics-port) or address (metrics.host)"
        ) from error
    url = f"http://{host}:{server.server_port}/metrics"
    logging.getLogger(LOGGER).info("metrics are served", extra={FIELDS: {"url": url}})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
