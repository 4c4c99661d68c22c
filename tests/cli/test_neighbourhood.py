"""Errors about a wrong place name what is there, and the line to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.base.errors import Refused
from lithify.datasets.registry import registered_for
from tests.cli.invoking import invoke
from tests.cli.test_golden import make_table


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("s3//bucket/db", "s3://bucket/db"),
        ("gs//bucket", "gs://bucket"),
        ("iceberg//lake/db.events", "iceberg://lake/db.events"),
        ("kafka+s3//bucket/orders-0", "kafka+s3://bucket/orders-0"),
        ("kafka+/backup/orders-0", "kafka+file:///backup/orders-0"),
    ],
)
def test_a_path_that_is_probably_a_url(wrong: str, meant: str) -> None:
    with pytest.raises(Refused) as refused:
        registered_for(wrong)
    assert f"write {meant}, or ./{wrong} if it is a path" in str(refused.value)


@pytest.mark.parametrize("path", ["s3/bucket/db", "./s3//bucket", "a//b", "/s3//bucket", "s3+x/y", "k+/x"])
def test_other_paths_are_paths(path: str) -> None:
    assert registered_for(path).noun == "database"


def said_of(url: Path | str, *options: str) -> str:
    result = invoke("plan", url, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def test_the_folder_of_a_log_a_database_below_and_nothing(tmp_path: Path) -> None:
    log = put(tmp_path / "backup", "orders-0/00000000000000000000.log", "orders-0/leader-epoch-checkpoint")
    assert f"open it as kafka+file://{log}/orders-0" in said_of(log)
    assert f"open it as kafka+file://{log}/orders-0" in said_of(log / "orders-0")
    above = put(tmp_path / "tenants", "blue/db/manifest/00000000000000000001.manifest")
    assert f"there is a database at file://{above}/blue/db" in said_of(above)
    (tmp_path / "empty").mkdir()
    assert "there is no object below it" in said_of(tmp_path / "empty")
    assert "there is no object below it" in said_of(tmp_path / "missing")
    other = put(tmp_path / "other", "00.log", "x.metadata.json", "1.manifest")
    assert "check the URL" in said_of(other)


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    folder = put(tmp_path / "backup", "\x1b[31m{url}[red]/00000000000000000000.log")
    said = said_of(folder)
    assert "\x1b" not in said
    assert "{url}[red]" in said


def test_a_table_by_its_folder_and_by_wrong_names(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    assert "open it through its catalog: iceberg://CATALOG/NAMESPACE.TABLE" in said_of(table.location())
    uri = ("--store-option", f"uri=sqlite:///{tmp_path}/catalog.db")
    assert "namespace db of catalog lake has events" in said_of("iceberg://lake/db.event", *uri)
    assert "catalog lake has no namespace dc, but db" in said_of("iceberg://lake/dc.events", *uri)


def test_a_catalog_without_configuration_is_explained_by_our_options(monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_of("iceberg://unheard-of/db.events")
    assert "--store-option uri=…, in PYICEBERG_CATALOG__UNHEARD_OF__URI, or in .pyiceberg.yaml" in said
    assert "--uri" not in said
