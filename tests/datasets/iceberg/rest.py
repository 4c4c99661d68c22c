"""A REST catalog on the loopback interface: the part of the protocol that loads and commits tables, in
front of a catalog in SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest


@contextmanager
def serve_rest(backend: Catalog) -> Iterator[RestCatalog]:
    """A client of a server for `backend`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            if self.path.startswith("/v1/config"):
                self._answer(200, {"defaults": {}, "overrides": {}})
            else:
                self._run(self._load)

        def do_POST(self) -> None:
            self._run(self._commit)

        def _identifier(self) -> tuple[str, ...]:
            _, _, _, namespace, _, name = self.path.partition("?")[0].split("/")
            return (*unquote(namespace).split("\x1f"), unquote(name))

        def _load(self) -> dict[str, Any]:
            table = backend.load_table(self._identifier())
            metadata = json.loads(table.metadata.model_dump_json())
            return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

        def _commit(self) -> dict[str, Any]:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = CommitTableRequest.model_validate_json(body)
            table = backend.load_table(self._identifier())
            response = backend.commit_table(table, request.requirements, request.updates)
            metadata = json.loads(response.metadata.model_dump_json())
            return {"metadata-location": response.metadata_location, "metadata": metadata}

        def _run(self, action: Any) -> None:
            try:
                self._answer(200, action())
            except NoSuchTableError as error:
                self._fail(404, error)
            except CommitFailedException as error:
                self._fail(409, error)

        def _fail(self, code: int, error: Exception) -> None:
            fields = {"message": str(error), "type": type(error).__name__, "code": code}
            self._answer(code, {"error": fields})

        def _answer(self, code: int, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield RestCatalog("test", uri=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
