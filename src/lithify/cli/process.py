"""What a process that runs until stopped has beside its loops: logs, and a metrics endpoint if asked for.

The endpoint listens on the loopback address unless the settings say otherwise, because it asks nobody who
they are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lithify.clock import SystemClock
from lithify.errors import Refused
from lithify.events import Event
from lithify.observe.logs import FIELDS, LOGGER, EventLog
from lithify.wiring import metrics, open_dataset

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from lithify.config.model import Config
    from lithify.datasets.kind import Dataset
    from lithify.observe.metrics import Metrics


class Process:
    """Logs and metrics of this process."""

    def __init__(self, config: Config, *, coordinates: bool) -> None:
        self._config = config
        self._log = EventLog(SystemClock())
        self._metrics: Metrics | None = None
        self._server: WSGIServer | None = None
        if config.metrics.port is not None:
            self._metrics = metrics(coordinates=coordinates)

    def observe(self, event: Event) -> None:
        """Log an event and count it."""
        self._log(event)
        if self._metrics is not None:
            self._metrics(event)

    def open_dataset(self, url: str) -> Dataset:
        """The database or table at `url`, seen by the metrics."""
        return open_dataset(url, self._config, self._metrics)

    def __enter__(self) -> Process:
        if self._metrics is not None:
            self._serve(self._metrics)
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _serve(self, metrics: Metrics) -> None:
        from prometheus_client import disable_created_metrics, start_http_server

        disable_created_metrics()  # type: ignore[no-untyped-call]  # the package does not type it
        host, port = self._config.metrics.host, self._config.metrics.port or 0
        try:
            self._server, _ = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise Refused(
                f"the metrics endpoint cannot listen on {host}:{port}: {error.strerror or error}; "
                "give another port (--metrics-port) or address (metrics.host)"
            ) from error
        url = f"http://{host}:{self._server.server_port}/metrics"
        logging.getLogger(LOGGER).info("metrics are served", extra={FIELDS: {"url": url}})
