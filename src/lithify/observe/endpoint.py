"""Where metrics can be read over HTTP, and whether the process is well. It asks nobody who they are, so it
listens on the loopback address unless the settings say otherwise.

| path       | answer                                                                             |
|------------|------------------------------------------------------------------------------------|
| `/healthz` | 200 as long as the process answers: else a supervisor should start it again         |
| `/readyz`  | 200 when every dataset was looked at within `READY_LIMIT_S`; else 503, and which not |
| any other  | the metrics                                                                        |

A store that is away makes a process unready, not unhealthy: starting it again would not help.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from lithify.errors import Refused
from lithify.observe.logs import FIELDS, LOGGER
from lithify.printable import printable

READY_LIMIT_S = 60.0
"""Many times what lies between two looks."""
_MAX_SHOWN = 20
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""As WSGI has it."""


class Observed(Protocol):
    """What a process tells of itself."""

    registry: CollectorRegistry

    def not_looked_at(self, limit_s: float) -> list[str]:
        """What should have been looked at in the last `limit_s`, and was not."""


@contextmanager
def served(
    metrics: Observed, host: str, port: int, *, ready_limit_s: float = READY_LIMIT_S
) -> Iterator[None]:
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
    server.set_app(with_health(server.get_app(), metrics, ready_limit_s))
    url = f"http://{host}:{server.server_port}/metrics"
    logging.getLogger(LOGGER).info("metrics are served", extra={FIELDS: {"url": url}})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def with_health(app: Any, metrics: Observed, ready_limit_s: float = READY_LIMIT_S) -> App:
    """The application, and what a supervisor asks."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in ("/healthz", "/readyz"):
            found: Iterable[bytes] = app(environ, start_response)
            return found
        late = metrics.not_looked_at(ready_limit_s) if path == "/readyz" else []
        shown = [printable(f"not looked at: {url}") for url in late[:_MAX_SHOWN]]
        start_response(
            "503 Service Unavailable" if late else "200 OK", [("Content-Type", "text/plain; charset=utf-8")]
        )
        return ["".join(f"{line}\n" for line in shown or ["ok"]).encode()]

    return answer
