"""A table's properties are data: they name no code, no host and no credentials, whatever they say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyiceberg.table import Table

import lithify
from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.table_properties import LOCATION_PROVIDER, USED, used
from lithify.datasets.iceberg.io.catalogs import open_catalog
from tests.cli.invoking import invoke
from tests.datasets.iceberg import intruder
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import Row, append, check, make_rows, new_catalog, new_table

CODE = (
    LOCATION_PROVIDER,
    "py-io-impl",
    "s3.retry-strategy-impl",
    "lithify.py-io-impl",
    "py-catalog-impl",
)
COMMANDS = (
    "plan",
    "status",
    "history",
    "gc",
    "rewrite-manifests --dry-run",
    "rewrite-equality-deletes --dry-run",
    "rewrite-position-delete-files --dry-run",
    "expire --dry-run",
    "remove-orphans",
    "readers list",
    "hold --list",
    "doctor --read-only",
)


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:
    intruder.calls.clear()


def claim(table: Table, properties: Mapping[str, str]) -> None:
    """Have the metadata file say so, as a client does that does not load what it names."""
    path = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    document["properties"].update(properties)
    path.write_text(json.dumps(document))


def claimed(folder: Path, properties: Mapping[str, str]) -> tuple[Table, list[Row], dict[str, str]]:
    """A table of three small files with these properties, its rows, and how its catalog is opened."""
    catalog = new_catalog(folder)
    table = new_table(catalog)
    rows = [row for _ in range(3) for row in append(table, make_rows(5))]
    table = catalog.load_table(table.name())
    claim(table, properties)
    return table, rows, {"uri": catalog.properties["uri"], "warehouse": catalog.properties["warehouse"]}


@pytest.mark.parametrize("name", CODE)
def test_no_command_calls_code_that_a_table_names(tmp_path: Path, name: str) -> None:
    _, _, options = claimed(tmp_path, {name: intruder.NAME})
    given = [f"--store-option={key}={value}" for key, value in options.items()]
    for command in COMMANDS:
        invoke(*command.split(), *given, "iceberg://test/db.events")
        assert intruder.calls == [], command


@pytest.mark.parametrize("name", CODE[:3])
def test_a_table_that_names_code_is_compacted_and_keeps_its_properties(tmp_path: Path, name: str) -> None:
    table, rows, options = claimed(tmp_path, {name: intruder.NAME})
    dataset = dataset_of(table, catalog=open_catalog("test", options))
    compact(dataset)
    assert intruder.calls == []
    found = dataset.load()
    assert len(found.inspect.files()) == 1
    assert found.metadata.properties[name] == intruder.NAME, "a commit changes nothing of a user's settings"
    assert any(f"the table's properties {name} are ignored" in note for note in dataset.snapshot().notes)
    claim(found, {name: ""})  # so that PyIceberg can be the judge
    check(new_catalog(tmp_path).load_table(found.name()), rows)


def test_an_operator_allows_a_location_provider_in_the_configuration_of_the_catalog(tmp_path: Path) -> None:
    table, rows, options = claimed(tmp_path, {LOCATION_PROVIDER: intruder.LOCATIONS})
    allowed = f"some.other.Provider, {intruder.LOCATIONS}"
    dataset = dataset_of(table, catalog=open_catalog("test", {**options, LOCATION_PROVIDER: allowed}))
    compact(dataset)
    [path] = dataset.load().inspect.files()["file_path"].to_pylist()
    assert "/data/chosen/" in path
    assert len(intruder.calls) == 1
    check(table, rows)


@pytest.mark.parametrize(
    "name", ["shutil:rmtree", "not.there.Name", "tests.datasets.iceberg.intruder.Missing"]
)
def test_an_allowed_location_provider_that_cannot_be_loaded_is_named_with_its_remedy(
    tmp_path: Path, name: str
) -> None:
    table, _, options = claimed(tmp_path, {LOCATION_PROVIDER: name})
    dataset = dataset_of(table, catalog=open_catalog("test", {**options, LOCATION_PROVIDER: name}))
    assert f"the location provider {name}" in dataset.snapshot().refused["data"]


def test_an_operator_names_another_file_access_in_the_configuration_of_the_catalog(tmp_path: Path) -> None:
    table, rows, options = claimed(tmp_path, {})
    dataset = dataset_of(table, catalog=open_catalog("test", {**options, "py-io-impl": intruder.FILES}))
    compact(dataset)
    assert intruder.calls
    check(table, rows)


HOSTS = {
    "s3.endpoint": "http://127.0.0.1:1",
    "s3.proxy-uri": "http://127.0.0.1:1",
    "gcs.service.host": "http://127.0.0.1:1",
    "adls.blob-storage-authority": "127.0.0.1:1",
    "s3.access-key-id": "theirs",
    "client.session-token": "theirs",
    "lithify.requests": "theirs",
    "lithify.reach": "theirs",
    "lithify.catalog-requests": "theirs",
    "warehouse": "s3://theirs",
}


def test_a_tables_files_are_reached_as_the_catalog_says_and_not_as_the_table_does(tmp_path: Path) -> None:
    table, _, options = claimed(tmp_path, HOSTS)
    own = open_catalog("test", options)
    found = own.load_table(table.name()).io.properties
    assert {name: found[name] for name in HOSTS if name in found and "lithify" not in name} == {
        "warehouse": options["warehouse"]
    }
    assert "theirs" not in map(str, found.values())


def test_properties_are_looked_at_in_one_place_alone() -> None:
    """A closed list is closed only where nothing goes past it."""
    around = re.compile(
        r"metadata\.properties|table\.properties|location_provider\(\)|load_location_provider"
    )
    folder = Path(lithify.__file__).parent
    found = {p.name for p in folder.rglob("*.py") if around.search(p.read_text())}
    assert found == {"table_properties.py"}


def test_the_list_has_what_a_table_may_say_of_its_own_files_and_nothing_else() -> None:
    kept = {"lithify.granularity": "day", "write.metadata.metrics.column.a.b": "full", "gc.enabled": "false"}
    dropped = dict.fromkeys((*HOSTS, *CODE, "owner", "token", "write.location-provider.impl"), "x")
    del dropped["lithify.requests"], dropped["lithify.reach"], dropped["lithify.catalog-requests"]
    del dropped["lithify.py-io-impl"]
    assert used({**kept, **dropped}) == kept
    assert not any(word in name for name in USED for word in ("impl", "endpoint", "host", "token", "uri"))


# Files outside the table


def test_a_data_file_outside_the_reach_of_a_table_is_not_opened(tmp_path: Path) -> None:
    """Its writer may have the worker read what it cannot read itself."""
    table, rows, options = claimed(tmp_path / "own", {})
    secret = tmp_path / "elsewhere" / "secret.parquet"
    secret.parent.mkdir()
    [*_, path] = table.inspect.files()["file_path"].to_pylist()
    Path(path.removeprefix("file://")).rename(secret)
    with table.transaction() as transaction:
        transaction.delete("id >= 0")
    table.add_files([secret.as_uri()])
    rows = [*append(table, make_rows(3)), *append(table, make_rows(3)), *append(table, make_rows(3))]
    closed = dataset_of(table, catalog=open_catalog("test", options))
    compact(closed)
    assert any("1 file(s) are left alone: they lie outside" in note for note in closed.snapshot().notes)
    assert secret.as_uri() in table.refresh().inspect.files()["file_path"].to_pylist()
    with pytest.raises(Refused, match=r"lies outside .*lithify\.allowed-locations"):
        closed.load().io.new_input(secret.as_uri())
    allowed = {**options, "lithify.allowed-locations": f"s3://x/, {secret.parent}"}
    at_once = {"min-saved-files": "1", "min-new-percent": "0"}
    opened = dataset_of(table, catalog=open_catalog("test", allowed), options=at_once)
    compact(opened)
    assert len(table.refresh().inspect.files()) == 1
    assert len(rows) + 5 == table.scan().count()


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
def test_nothing_is_written_outside_the_reach_of_a_table(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    table, rows, options = claimed(tmp_path / "own", {name: elsewhere.as_uri()})
    with pytest.raises(Refused, match="lies outside"):
        compact(dataset_of(table, catalog=open_catalog("test", options)))
    assert not elsewhere.exists()
    allowed = {**options, "lithify.allowed-locations": elsewhere.as_uri()}
    compact(dataset_of(table, catalog=open_catalog("test", allowed)))
    assert any(elsewhere.iterdir())
    check(table, rows)
