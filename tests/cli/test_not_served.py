"""Stores that do not have an operation that Lithify needs, as table buckets of S3 answer a listing and a
deletion by 405: named for what they are, before anything is written, and not asked again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.base.errors import NotServed
from lithify.store.urls import open_store
from lithify.testing.s3 import Operation
from tests.cli.invoking import invoke, invoke_json
from tests.datasets.iceberg.tables import append, make_rows, new_table, s3_catalog
from tests.s3 import S3, serve_s3

URL = "iceberg://test/db.events"
LIST = frozenset({Operation.LIST})
DELETE = frozenset({Operation.DELETE, Operation.DELETE_MANY})
READS = {Operation.GET, Operation.HEAD, Operation.LIST}
LISTS_NONE = (
    "this store does not list objects (405 Method Not Allowed), which Lithify needs: keep the data in a"
)
DELETES_NONE = (
    "this store does not delete objects (405 Method Not Allowed), which Lithify needs: keep the data in a"
)


@pytest.fixture(scope="module")
def odd() -> Iterator[S3]:
    with serve_s3() as server:
        yield server


@pytest.fixture
def table(odd: S3, tmp_path: Path) -> Iterator[list[str]]:
    """The arguments that name a table of which there is something to compact."""
    catalog = s3_catalog(odd, tmp_path)
    new = new_table(catalog)
    for _ in range(3):
        append(new, make_rows(3))
    options = [part for name, v in catalog.properties.items() for part in ("--store-option", f"{name}={v}")]
    yield [URL, *options]
    odd.server.not_allowed = frozenset()


def said(*arguments: str) -> tuple[int, str]:
    found = invoke(*arguments)
    return found.exit_code, " ".join((found.stdout + found.stderr).split())


@pytest.mark.parametrize("command", ["plan", "status", "compact", "remove-orphans", "gc"])
def test_a_store_that_cannot_list(odd: S3, table: list[str], command: str) -> None:
    odd.server.not_allowed = LIST
    odd.server.forget()
    code, text = said(command, *table)
    assert code == 5
    assert LISTS_NONE in text
    asked = [request.operation for request in odd.server.log]
    assert set(asked) <= READS, "nothing is written"
    assert asked.count(Operation.LIST) <= 2, "nor is it asked again"


def test_doctor_names_it_and_its_advice_helps(odd: S3, table: list[str]) -> None:
    """Which is another store: this one, from when on it lists and deletes."""

    def problems() -> dict[str, tuple[str, str]]:
        found = invoke_json("doctor", *table, exit_code=10)
        return {f["check"]: (f["says"], f["do"]) for f in found if f["severity"] != "ok"}

    odd.server.not_allowed = LIST
    ((check, (says, do)),) = problems().items()
    assert (check, LISTS_NONE in says, do) == ("table", True, "use another store, as the error says")
    odd.server.not_allowed = DELETE
    ((check, (says, do)),) = problems().items()
    assert (check, DELETES_NONE in says, do) == ("delete", True, "use another store, as the error says")
    odd.server.not_allowed = frozenset()
    found = invoke_json("doctor", *table)
    assert {f["severity"] for f in found} == {"ok"}
    assert "list" in {f["check"] for f in found}


def test_a_database_there(odd: S3) -> None:
    odd.server.not_allowed = LIST
    url = f"s3://{odd.bucket()}/db"
    options = [part for name, v in odd.options.items() for part in ("--store-option", f"{name}={v}")]
    try:
        code, text = said("plan", url, *options)
        assert (code, LISTS_NONE in text) == (5, True)
        found = invoke_json("doctor", url, *options, exit_code=10)
        assert [f["do"] for f in found if f["severity"] == "problem"] == [
            "use another store, as the error says"
        ]
    finally:
        odd.server.not_allowed = frozenset()


def test_every_operation(odd: S3) -> None:
    odd.server.not_allowed = frozenset(Operation)
    store, _ = open_store(f"s3://{odd.bucket()}", odd.options)
    try:
        for ask in (
            lambda: list(store.list("a")),
            lambda: list(store.stream("a")),
            lambda: store.folder("a"),
            lambda: store.delete("a"),
            lambda: store.get("a"),
            lambda: store.head("a"),
            lambda: store.put("a", b""),
            lambda: store.create("a", b""),
            lambda: store.replace("a", b"", "etag"),
        ):
            with pytest.raises(NotServed, match=r"this store .* \(405 Method Not Allowed\)"):
                ask()
    finally:
        odd.server.not_allowed = frozenset()
