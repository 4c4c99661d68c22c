"""A table of the embedded catalog, served over Iceberg's REST protocol on the loopback interface:
`python -m benchmarks.iceberg_rest FOLDER [deletes|rewrite]`. Prints its URI and serves until it is ended.

Some compactors know no other kind of catalog. It has what these ask for and no more: the configuration,
one namespace, loading the table and committing to it. It can also be a busy table, where something happens
when the first commit arrives, before that is carried out:

- `deletes`: rows of two live files are deleted by position, in one commit each, then a file is appended;
- `rewrite`: a live file is replaced by another with the same rows but one.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate
from tests.datasets.iceberg.tables import delete_positions

from benchmarks.iceberg_data import NAME, events, live_files, local_path, open_catalog

DELETED_ROWS_PER_FILE = 100
DELETED_FILES = 2
APPENDED_ROWS = 50
_NAMESPACE = f"/v1/namespaces/{NAME[0]}"
_REQUESTER = {"s3.access-key-id": "catalog"}
"""Over S3, what the catalog asks for can be told from what compactors do."""
_TABLE = f"{_NAMESPACE}/tables/{NAME[1]}"


class Catalog:
    """Answers requests; one at a time."""

    def __init__(self, folder: Path, before_commit: Callable[[Table], None] | None) -> None:
        self._folder = folder
        self._before_commit = before_commit
        self._lock = threading.Lock()

    def get(self, path: str) -> tuple[int, Any]:
        """The status and the document for a GET or a HEAD."""
        if path == "/v1/config":
            return 200, {"defaults": {}, "overrides": {}}
        if path == _NAMESPACE:
            return 200, {"namespace": [NAME[0]], "properties": {}}
        if path == _TABLE:
            with self._lock:
                return 200, self._document()
        return 404, _error(404, "NoSuchTableException", f"{path} does not exist")

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the document for a POST."""
        if path == f"{_TABLE}/metrics":
            return 204, None
        if path != _TABLE:
            return 404, _error(404, "NoSuchTableException", f"{path} does not exist")
        with self._lock:
            before, self._before_commit = self._before_commit, None
            if before is not None:
                before(self._table())
            return self._commit(body)

    def _commit(self, body: bytes) -> tuple[int, Any]:
        document = {"identifier": {"namespace": [NAME[0]], "name": NAME[1]}, **json.loads(body)}
        request = CommitTableRequest.model_validate(document)
        try:
            table = self._table()
            table.catalog.commit_table(table, request.requirements, _together(request.updates))
        except CommitFailedException as error:
            return 409, _error(409, "CommitFailedException", str(error))
        return 200, self._document()

    def _table(self) -> Table:
        return open_catalog(self._folder, _REQUESTER).load_table(NAME)

    def _document(self) -> dict[str, Any]:
        table = self._table()
        with table.io.new_input(table.metadata_location).open() as stream:
            metadata = json.loads(stream.read())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _together(updates: Iterable[TableUpdate]) -> tuple[TableUpdate, ...]:
    """Snapshots that are removed one by one, at once: PyIceberg makes new metadata of each update."""
    gone = {s for update in updates if isinstance(update, RemoveSnapshotsUpdate) for s in update.snapshot_ids}
    others: list[Any] = [update for update in updates if not isinstance(update, RemoveSnapshotsUpdate)]
    if gone:
        others.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(gone)}))
    return tuple(others)


def delete_rows(table: Table) -> None:
    """Delete rows of two live files, each in a commit of its own, and append a file."""
    files = sorted(task.file.file_path for task in table.scan().plan_files())
    for path in files[:: max(1, len(files) // DELETED_FILES)][:DELETED_FILES]:
        delete_positions(table, {path: range(DELETED_ROWS_PER_FILE)})
    table.refresh().append(events(len(files), len(files), APPENDED_ROWS))


def rewrite_file(table: Table) -> None:
    """Delete one row by writing its file anew."""
    first = min(task.file.file_path for task in table.scan().plan_files())
    row = pq.read_table(local_path(first), columns=["payload"]).slice(0, 1).to_pylist()[0]
    table.delete(f"payload = '{row['payload']}'")


MEANWHILE = {"deletes": delete_rows, "rewrite": rewrite_file}


@contextmanager
def served(folder: Path, meanwhile: str | None = None) -> Iterator[str]:
    """The URI of a catalog for the table in a folder, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.iceberg_rest",
        str(folder),
        *filter(None, [meanwhile]),
    ]
    with Popen(command, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


def _handler(catalog: Catalog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(*catalog.get(self.path.partition("?")[0]))

        def do_HEAD(self) -> None:
            self._answer(catalog.get(self.path.partition("?")[0])[0], None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._answer(*catalog.post(self.path.partition("?")[0], body))

        def _answer(self, status: int, document: Any) -> None:
            body = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler


def _main() -> None:
    folder = Path(sys.argv[1])
    live_files(folder)  # fails now rather than in a request
    catalog = Catalog(folder, MEANWHILE[sys.argv[2]] if len(sys.argv) > 2 else None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(catalog))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
