"""A REST catalog on the loopback interface, in front of a catalog in SQLite: what clients of the protocol
need to make, load, change and drop tables. PyIceberg carries out what they ask."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from tests import serving

Document = dict[str, Any]
_STATUS: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}
"""Of everything else it is 400: clients do not repeat that."""


class Endpoints:
    """What the server answers, one request at a time."""

    def __init__(self, backend: Catalog, configuration: Document, of_tables: Document) -> None:
        """`configuration` is answered to who asks for it, `of_tables` with each table."""
        self._backend = backend
        self._of_tables = of_tables
        self._lock = threading.Lock()
        namespace = r"/v1/namespaces/([^/]+)"
        table = rf"{namespace}/tables/([^/]+)"
        self._routes: list[tuple[str, str, Callable[..., Document | None]]] = [
            ("GET", "/v1/config", lambda _: {"defaults": {}, "overrides": {}, **configuration}),
            ("GET", "/v1/namespaces", self._list_namespaces),
            ("POST", "/v1/namespaces", self._create_namespace),
            ("GET|HEAD", namespace, self._load_namespace),
            ("GET", f"{namespace}/tables", self._list_tables),
            ("POST", f"{namespace}/tables", self._create_table),
            ("GET|HEAD", table, self._load_table),
            ("POST", table, self._commit),
            ("DELETE", table, self._drop_table),
            ("POST", f"{table}/metrics", lambda *_: None),
        ]

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Document | None]:
        """The status and the document."""
        for methods, pattern, action in self._routes:
            match = re.fullmatch(pattern, path.partition("?")[0])
            if match is None or method not in methods.split("|"):
                continue
            names = [unquote(name) for name in match.groups()]
            try:
                with self._lock:
                    document = action(json.loads(body) if body else {}, *names)
            except Exception as error:
                return _failure(_STATUS.get(type(error), 400), error)
            return (204 if document is None else 200), document
        return _failure(404, NotImplementedError(f"{method} {path} is not served"))

    def _list_namespaces(self, _: Document) -> Document:
        return {"namespaces": [list(name) for name in self._backend.list_namespaces()]}

    def _create_namespace(self, request: Document) -> Document:
        self._backend.create_namespace(tuple(request["namespace"]))
        return {"namespace": request["namespace"], "properties": {}}

    def _load_namespace(self, _: Document, name: str) -> Document:
        properties = self._backend.load_namespace_properties(_levels(name))
        return {"namespace": list(_levels(name)), "properties": properties}

    def _list_tables(self, _: Document, namespace: str) -> Document:
        found = self._backend.list_tables(_levels(namespace))
        return {"identifiers": [{"namespace": list(levels), "name": name} for *levels, name in found]}

    def _create_table(self, request: Document, namespace: str) -> Document:
        if request.get("stage-create"):
            raise NotImplementedError("a table is created empty here, not together with its rows")
        spec, order = request.get("partition-spec"), request.get("write-order")
        table = self._backend.create_table(
            (*_levels(namespace), request["name"]),
            Schema.model_validate(request["schema"]),
            location=request.get("location"),
            partition_spec=PartitionSpec.model_validate(spec) if spec else UNPARTITIONED_PARTITION_SPEC,
            sort_order=SortOrder.model_validate(order) if order else UNSORTED_SORT_ORDER,
            properties=request.get("properties") or {},
        )
        return _loaded(table)

    def _load_table(self, _: Document, namespace: str, name: str) -> Document:
        return {**_loaded(self._backend.load_table((*_levels(namespace), name))), **self._of_tables}

    def _commit(self, request: Document, namespace: str, name: str) -> Document:
        identifier = (*_levels(namespace), name)
        names = {"namespace": list(_levels(namespace)), "name": name}
        parsed = CommitTableRequest.model_validate({"identifier": names, **request})
        table = self._backend.load_table(identifier)
        return _loaded(self._backend.commit_table(table, parsed.requirements, parsed.updates))

    def _drop_table(self, _: Document, namespace: str, name: str) -> None:
        self._backend.drop_table((*_levels(namespace), name))


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(namespace.split("\x1f"))


def _loaded(table: Table | CommitTableResponse) -> Document:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _failure(code: int, error: Exception) -> tuple[int, Document]:
    fields = {"message": str(error), "type": type(error).__name__, "code": code}
    return code, {"error": fields}


@contextmanager
def serve_rest(
    backend: Catalog, configuration: Document | None = None, of_tables: Document | None = None
) -> Iterator[RestCatalog]:
    """A client of a server for `backend`, which answers as `Endpoints` says."""
    endpoints = Endpoints(backend, configuration or {}, of_tables or {})

    class Handler(serving.Handler):
        def do_GET(self) -> None:
            self._run()

        def do_HEAD(self) -> None:
            self._run()

        def do_POST(self) -> None:
            self._run()

        def do_DELETE(self) -> None:
            self._run()

        def _run(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            code, document = endpoints.answer(self.command, self.path, body)
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    with serving.serving(Handler) as url:
        yield RestCatalog("test", uri=url)
