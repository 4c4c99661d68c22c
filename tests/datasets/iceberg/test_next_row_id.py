"""The next row id of a table of format version 3 under races: no id is given twice, ever.

Writers on two branches prepare commits on top of whatever the table is at that time, and publish them in any
order. Answers are lost before or after the commit takes effect. A rule reads all snapshots and checks what
they assigned. Mutants of the code show that the rule finds what it is for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    write_manifest_list,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Record

from lithify.base.errors import StoreError
from lithify.datasets.iceberg.format import manifest_list, manifests, replace
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, list_snapshot, read_listing
from lithify.datasets.iceberg.format.publish import PreparedSnapshot, discard, publish
from lithify.datasets.iceberg.format.replace import Added, Replacement, write
from lithify.datasets.iceberg.io.closed_catalogs import ClosedCatalog, ClosedRestCatalog
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import append, fresh, make_rows, new_catalog, new_table, set_version
from tests.judge.iceberg_java import IcebergJava

BRANCHES = (MAIN_BRANCH, "side")
STEPS = 40
SEEDS = 12


class Losing(ClosedCatalog):
    """Loses the next answer on request."""

    loses: str = ""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        loses, self.loses = self.loses, ""
        if loses == "before":
            raise ConnectionError("the answer was lost")
        answer = super().commit_table(table, requirements, updates)  # type: ignore[safe-super]  # a mix-in
        if loses == "after":
            raise ConnectionError("the answer was lost")
        return answer


class LosingSql(Losing, SqlCatalog):
    """It writes metadata files itself."""


class LosingRest(Losing, ClosedRestCatalog):
    """Its server does."""


class Race:
    """Two branches of an upgraded table, and commits in any order."""

    def __init__(self, folder: Path, seed: int, java: IcebergJava | None = None) -> None:
        """In a REST catalog of Java's, if that is given."""
        self.rng = random.Random(f"next row id {seed}")
        self.catalog: Losing
        if java is None:
            table = new_table(new_catalog(folder))
            self.catalog = LosingSql("test", **table.catalog.properties)
        else:
            self.catalog = LosingRest("test", uri=java.serve(folder.as_uri()))
            table = new_table(RestCatalog("test", uri=self.catalog.uri))
        for _ in range(3):
            append(table, make_rows(5))
        ManifestRewriter(dataset_of(table), a_clock()).run()  # entries of existing files
        with fresh(table).manage_snapshots() as change:
            head = fresh(table).metadata.current_snapshot_id
            assert head is not None
            change.create_branch(head, "side")
        if java is None:
            set_version(table, 3)
        else:
            java.tables("upgrade", "events", 3)
        self.waiting: list[tuple[Table, PreparedSnapshot]] = []
        self.files = 0
        self.committed = 0

    @property
    def table(self) -> Table:
        return self.catalog.load_table(("db", "events"))

    def step(self) -> None:
        if len(self.waiting) < 3 and self.rng.random() < 0.6:
            self.prepare()
        elif self.waiting:
            self.publish(*self.waiting.pop(self.rng.randrange(len(self.waiting))))

    def prepare(self) -> None:
        table, branch = self.table, self.rng.choice(BRANCHES)
        head = read_listing(table, branch, ManifestCache())
        assert head is not None
        what = self.rng.choice(("append", "append", "remove", "nothing"))
        replacement = Replacement()
        if what == "append":
            number, files = table.metadata.next_sequence_number(), self.rng.randint(1, 3)
            replacement.added += [Added(self.new_file(), number) for _ in range(files)]
        elif what == "remove" and len(head.data) > 1:
            path = self.rng.choice(sorted(head.data))
            replacement.removed[path] = head.data[path]
        self.waiting.append((table, write(table, branch, head, replacement, {}, 0)))

    def new_file(self) -> DataFile:
        self.files += 1
        file = DataFile.from_args(
            3,
            content=DataFileContent.DATA,
            file_path=f"{self.table.location()}/data/{self.files}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=self.rng.randint(1, 9),
            file_size_in_bytes=100,
        )
        file.spec_id = 0
        return file

    def publish(self, table: Table, prepared: PreparedSnapshot) -> None:
        loses = self.catalog.loses = self.rng.choice(("", "", "before", "after"))
        try:
            done = publish(table, prepared, lambda: self.table)
        except StoreError:  # not known, and tried again later
            if not loses:
                raise
            self.waiting.append((table, prepared))
            return
        self.committed += done
        if not done:
            discard(table.io, prepared.written)


def broken_rule(table: Table) -> str:
    """Return what contradicts the rule; empty if nothing does."""
    metadata = table.metadata
    assert isinstance(metadata, TableMetadataV3)
    following = metadata.next_row_id or 0
    given: dict[tuple[str, int], range] = {}
    for snapshot in metadata.snapshots:
        if snapshot.first_row_id is None:
            continue
        for path, ids in _assigned(list_snapshot(table, snapshot, ManifestCache())):
            given[path, ids.start] = ids
            if ids.stop > following:
                return f"{path} has the row ids {ids}, but the next one is {following}"
            if ids.stop > snapshot.first_row_id + (snapshot.added_rows or 0):
                return f"{path} has the row ids {ids} before a snapshot assigned them"
    last = range(0)
    for ids in sorted(given.values(), key=lambda ids: (ids.start, ids.stop)):
        if ids.start < last.stop:
            return f"the row ids {ids} and {last} overlap"
        last = ids
    return _changed(table, metadata)


def _changed(table: Table, metadata: TableMetadata) -> str:
    """Return which file's ids differ between a snapshot and its parent."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    for snapshot in metadata.snapshots:
        parent = by_id.get(snapshot.parent_snapshot_id or 0)
        if parent is None or parent.first_row_id is None:
            continue
        now = dict(_assigned(list_snapshot(table, snapshot, ManifestCache())))
        for path, ids in _assigned(list_snapshot(table, parent, ManifestCache())):
            if now.get(path, ids) != ids:
                return f"the row ids of {path} were {ids} and are {now[path]}"
    return ""


def _assigned(listing: Listing) -> Iterator[tuple[str, range]]:
    for entry in listing.entries(DataFileContent.DATA):
        file = entry.data_file
        first = file._data[-4]
        assert first is not None, "every file has row ids after the first commit"
        yield file.file_path, range(first, first + file.record_count)


def played(folder: Path, seed: int, java: IcebergJava | None = None) -> Race:
    race = Race(folder, seed, java)
    for _ in range(STEPS):
        race.step()
    return race


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_id_is_given_twice(tmp_path: Path, seed: int) -> None:
    race = played(tmp_path, seed)
    assert race.committed > 3
    assert broken_rule(race.table) == ""


def test_no_id_is_given_twice_through_a_rest_catalog(java: IcebergJava, tmp_path: Path) -> None:
    """Java refuses a snapshot whose sequence number another branch has taken meanwhile: a conflict."""
    race = played(tmp_path, 0, java)
    assert race.committed > 3
    assert broken_rule(race.table) == ""


def _stale(metadata: TableMetadata) -> int:
    """A next row id that does not count other branches."""
    head = metadata.snapshot_by_name(MAIN_BRANCH)
    assert head is not None
    return (head.first_row_id or 0) + (head.added_rows or 0)


def _not_written_out(entry: Any, status: Any, snapshot_id: int | None) -> Any:
    made = ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=DataFile(*entry.data_file._data),
    )
    made.data_file._data[-4] = None
    made.data_file.spec_id = entry.data_file.spec_id
    return made


def _without_existing(listed: Any, manifest: Any) -> Any:
    """Space for added rows only, as if all existing ones had ids."""
    found = _PREPARE(listed, manifest)
    if manifests.first_row_id_of(manifest) is None and manifest.content == ManifestContent.DATA:
        listed.next_row_id -= manifest.existing_rows_count or 0
    return found


_PREPARE = manifest_list._ListWriter.prepare_manifest
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a head's next id": (manifest_list, "next_row_id", _stale),
    "inherited ids are not written out": (replace, "_with_status", _not_written_out),
    "no space for existing rows": (manifest_list._ListWriter, "prepare_manifest", _without_existing),
    "a manifest is cached by its path alone": (manifests, "first_row_id_of", lambda manifest: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_rule_finds_mutants(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(place, attribute, mutant)
    for seed in range(SEEDS):
        try:
            if broken_rule(played(tmp_path / str(seed), seed).table):
                return
        except (ValueError, AssertionError):
            return  # the catalog, or the rule, finds no ids at all
    pytest.fail("the rule finds nothing wrong")


def test_wrong_counts_of_an_old_list_give_no_id_twice(tmp_path: Path) -> None:
    """The first commit after an upgrade counts the rows of old manifests itself."""
    race = Race(tmp_path, 0)
    table = race.table
    head = table.current_snapshot()
    assert head is not None
    (manifest,) = head.manifests(table.io)
    for place in (10, 11):
        manifest._data[place] = 0
    output = table.io.new_output(head.manifest_list)
    Path(head.manifest_list.removeprefix("file://")).unlink()
    with write_manifest_list(2, output, head.snapshot_id, None, head.sequence_number or 0, "null") as listed:
        listed.add_manifests([manifest])
    for _ in range(STEPS):
        race.step()
    assert broken_rule(race.table) == ""
