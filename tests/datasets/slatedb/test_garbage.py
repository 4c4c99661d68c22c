"""Garbage collection on real databases, judged by the official client."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lithify import telemetry
from lithify.cli.main import app
from lithify.clock import Clock, SystemClock
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage import Count, GarbageOptions, Kind, Report, collect
from lithify.datasets.slatedb.paths import DatabasePaths
from lithify.errors import CorruptObject, Refused, VersionConflict
from lithify.ids import RandomIds, Ulid, ulid_ms
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.store.versions import VersionedFiles
from lithify.telemetry import Event
from lithify.testing import ManualClock, crash_at_every_call
from tests.compacting import check_state_files, compact, dataset_at
from tests.judge.official import Admin, Database, Put, copy_database, open_db, open_reader

IDS = RandomIds()
PATHS = DatabasePaths("db")
AT_ONCE = GarbageOptions(min_age_ms=0, dry_run=False)
HOUR_MS = 3_600_000
Model = dict[bytes, bytes]


def test_a_negative_age_is_refused() -> None:
    with pytest.raises(Refused, match="negative"):
        GarbageOptions(min_age_ms=-1)


# Real databases


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def write(database: Database, batches: int, tag: bytes, keys: int = 50) -> Model:
    """So many overlapping L0 SSTs; what a scan of them shows."""
    model: Model = {}
    for batch in range(batches):
        rows = {b"k%03d" % n: b"%s-%d" % (tag, batch) for n in range(batch, keys)}
        database.write_batch([Put(k, v) for k, v in rows.items()])
        database.flush()
        model |= rows
    return model


def gc(
    path: Path,
    *,
    clock: Clock | None = None,
    options: GarbageOptions = AT_ONCE,
    store: ObjectStore | None = None,
) -> Report:
    opened, root = open_store(str(path))
    return collect(
        store if store is not None else opened,
        DatabasePaths(root),
        clock if clock is not None else SystemClock(),
        options,
    )


def in_an_hour() -> ManualClock:
    """When the checkpoints of commits have expired."""
    return ManualClock(int(time.time() * 1000) + HOUR_MS)


def names(path: Path, folder: str) -> set[str]:
    return {p.name for p in (path / folder).iterdir()}


def compact_well(dataset: SlateDataset) -> None:
    result = compact(dataset)
    assert result.committed
    assert not result.failures


def aged_database(path: Path) -> Model:
    """A database of one run and two L0s with garbage of every kind."""
    with open_db(path) as database:
        model = write(database, 4, b"old")
        compact_well(dataset_at(path, checkpoint_lifetime_s=0))
        model |= write(database, 3, b"mid")
        compact_well(dataset_at(path, checkpoint_lifetime_s=0))
        model |= write(database, 2, b"new")
    return model


def check(path: Path, model: Model) -> None:
    with open_db(path) as database:
        assert dict(database.scan()) == model


def test_the_official_collector_deletes_the_same(path: Path, tmp_path: Path) -> None:
    model = aged_database(path)
    official = copy_database(path, tmp_path / "official")
    before = names(path, "compacted")
    report = gc(path, options=replace(AT_ONCE, kinds=frozenset(Kind)))
    Admin(official).run_gc(min_age_ms=0, wal_fences=True)
    assert names(path, "compacted") == names(official, "compacted") < before
    assert report.counts[Kind.COMPACTED].deletable == len(before) - len(names(path, "compacted"))
    for folder in ("manifest", "compactions"):
        assert names(path, folder) == names(official, folder), folder
        assert (path / f"gc/{folder}.boundary").read_bytes() == (
            official / f"gc/{folder}.boundary"
        ).read_bytes()
    assert names(path, "wal") == names(official, "wal")
    assert report.counts[Kind.WAL].deletable
    assert report.counts[Kind.WAL_FENCE].deletable
    check_state_files(dataset_at(path), path)
    check(path, model)


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(path: Path) -> None:
    aged_database(path)
    before = sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*"))
    clock = ManualClock(int(time.time() * 1000))
    said = gc(path, clock=clock, options=replace(AT_ONCE, dry_run=True))
    assert sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*")) == before
    done = gc(path, clock=clock)
    assert done.counts[Kind.CHECKPOINT].deletable == 2
    assert done.counts[Kind.COMPACTED].deletable_bytes > 0
    one_more = {
        Kind.MANIFEST: replace(said.counts[Kind.MANIFEST], found=said.counts[Kind.MANIFEST].found + 1)
    }
    assert {**said.counts, **one_more} == done.counts
    assert said.sst_cutoff == done.sst_cutoff
    assert gc(path, clock=clock).deletable == 0


def test_what_is_young_stays(path: Path) -> None:
    aged_database(path)
    report = gc(path, options=GarbageOptions(dry_run=False))
    assert (
        report.counts[Kind.COMPACTED].deletable,
        report.counts[Kind.MANIFEST].deletable,
        report.counts[Kind.COMPACTIONS].deletable,
    ) == (0, 0, 0)
    assert report.sst_cutoff.reason == "the minimum age"


def test_a_database_without_a_coordinator_keeps_every_sst(path: Path) -> None:
    with open_db(path) as database:
        model = write(database, 3, b"v")
    before = names(path, "compacted")
    report = gc(path, clock=in_an_hour())
    assert report.counts[Kind.COMPACTIONS] == Count(0, 0)
    assert names(path, "compacted") == before
    check(path, model)


def test_a_reader_of_an_old_checkpoint_still_scans(path: Path) -> None:
    with open_db(path) as database:
        old = write(database, 4, b"old")
        checkpoint = Admin(path).create_checkpoint(name="keep")
        compact_well(dataset_at(path))
        new = write(database, 3, b"new", keys=80)
        compact_well(dataset_at(path))
    report = gc(path, clock=in_an_hour())
    assert report.counts[Kind.COMPACTED].deletable
    assert report.counts[Kind.MANIFEST].deletable
    with open_reader(path, checkpoint=checkpoint) as reader:
        assert dict(reader.scan()) == old
    check(path, old | new)


def test_an_open_database_keeps_working(path: Path) -> None:
    with open_db(path) as database:
        model: Model = {}
        for tag in (b"a", b"b", b"c"):
            model |= write(database, 3, tag)
            compact_well(dataset_at(path))
            model |= write(database, 1, tag)
            assert dict(database.scan()) == model
            report = gc(path, clock=in_an_hour())
            assert report.counts[Kind.MANIFEST].deletable
            assert dict(database.scan()) == model
    check(path, model)


def test_outputs_of_a_compaction_under_way_survive(path: Path) -> None:
    reports: list[Report] = []
    with open_db(path) as database:
        model = write(database, 4, b"v", keys=3000)

        def collect_now(event: Event) -> None:
            if isinstance(event, telemetry.Compacted):
                model.update(write(database, 1, b"late"))  # the newest L0 protects them no more
                reports.append(gc(path, clock=in_an_hour()))

        compact(dataset_at(path), observer=collect_now)
        assert dict(database.scan()) == model
    assert [r.sst_cutoff.reason for r in reports] == ["the oldest compaction in the ledger"]
    check(path, model)


def test_leftovers_of_a_crashed_compaction_go_once_a_younger_one_has_finished(path: Path) -> None:
    with open_db(path) as database:
        model = write(database, 4, b"a")
        compact_well(dataset_at(path))
        ledger = dataset_at(path).ledger()
        assert ledger is not None
        leftover = path / "compacted" / f"{IDS.ulid(ulid_ms(Ulid(ledger.compactions[-1].id)) + 1)}.sst"
        leftover.write_bytes(b"cut sho")
        model |= write(database, 3, b"b")
        gc(path, clock=in_an_hour())
        assert leftover.exists()
        compact_well(dataset_at(path))
        gc(path, clock=in_an_hour())
        assert not leftover.exists()
    check(path, model)


def test_fences_and_foreign_names_stay(path: Path) -> None:
    model = aged_database(path)
    old = IDS.ulid(1_000_000)
    strange = [path / "compacted" / name for name in (f"{old}.sst.tmp", "README", "x.sst")]
    strange += [path / "manifest" / "notes.txt", path / "wal" / "1.sst", path / "wal" / "notes"]
    strange += [path / "lithify" / name for name in ("coordinator.json", "progress/notes", f"{old}/x.json")]
    for file in strange:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    fences = {f.name for f in (path / "wal").glob("0*.sst") if not f.stat().st_size}
    gc(path, clock=in_an_hour())
    assert fences
    assert fences <= names(path, "wal")
    assert all(file.exists() for file in strange)
    check(path, model)


def test_a_clone_and_its_parent_survive_each_others_collections(path: Path, tmp_path: Path) -> None:
    from tests.judge.official import CloneSource

    model = aged_database(path)
    clone = tmp_path / "clone"
    Admin(clone).clone_from(CloneSource(path))
    compact_well(dataset_at(path, checkpoint_lifetime_s=0))
    gc(path, clock=in_an_hour())
    gc(clone, clock=in_an_hour())
    check(clone, model)
    check(path, model)


def test_a_missing_pinned_manifest_ends_the_run(path: Path) -> None:
    aged_database(path)
    Admin(path).create_checkpoint(name="keep")
    pinned = Admin(path).list_checkpoints()[-1].manifest_id
    with open_db(path):
        pass
    (path / f"manifest/{pinned:020d}.manifest").unlink()
    before = [names(path, folder) for folder in ("compacted", "compactions")]
    with pytest.raises(CorruptObject, match="pins this manifest and it is missing"):
        gc(path)
    assert [names(path, folder) for folder in ("compacted", "compactions")] == before


def test_one_who_slept_through_a_collection_takes_no_collected_number(path: Path) -> None:
    """A warm cache of ours, and an open official database that does not poll."""
    with open_db(path, settings={"manifest_poll_interval": "1h"}) as database:
        model = write(database, 2, b"a")
        store, root = open_store(str(path))
        paths = DatabasePaths(root)
        sleeper = VersionedFiles(store, paths.manifest_folder, ".manifest", paths.manifest_boundary)
        slept_at = sleeper.latest()
        assert slept_at is not None
        for n in range(8):
            Admin(path).create_checkpoint(name=f"c{n}")
        for checkpoint in Admin(path).list_checkpoints():
            Admin(path).delete_checkpoint(checkpoint.id)
        gc(path)
        assert names(path, "manifest") == {f"{slept_at.id + 16:020d}.manifest"}

        with pytest.raises(VersionConflict):
            sleeper.publish(slept_at, slept_at.data)
        (path / f"manifest/{slept_at.id + 1:020d}.manifest").unlink()
        seen = sleeper.latest()
        assert seen is not None
        assert seen.id == slept_at.id + 16

        model |= write(database, 1, b"b")
    assert max(names(path, "manifest")) > f"{slept_at.id + 16:020d}"
    check(path, model)


def test_a_crash_at_any_store_call_loses_nothing_and_the_next_run_finishes(
    path: Path, tmp_path: Path
) -> None:
    model = aged_database(path)
    now_ms = int(time.time() * 1000)
    copies = itertools.count()
    current: list[Path] = []

    def make_store() -> ObjectStore:
        current[:] = [copy_database(path, tmp_path / f"copy{next(copies)}")]
        return open_store(str(current[0]))[0]

    def run(store: ObjectStore) -> None:
        gc(current[0], clock=ManualClock(now_ms), store=store)

    run(make_store())
    finished = {folder: names(current[0], folder) for folder in ("compacted", "manifest", "compactions")}
    sites = 0
    for site, _ in crash_at_every_call(make_store, run):
        sites += 1
        copy = current[0]
        # What a crash leaves is complete garbage or none, so the next run ends where one run would.
        for manifest_id in dataset_at(copy).manifest_ids()[-1:]:
            assert Admin(copy).read_manifest(manifest_id) is not None
        judged = copy_database(copy, tmp_path / "judged")
        check(judged, model)
        shutil.rmtree(judged)
        gc(copy, clock=ManualClock(now_ms))
        assert {folder: names(copy, folder) for folder in finished} == finished, site
        shutil.rmtree(copy)
    assert sites > 40


# The command


def test_the_command_says_by_default_and_deletes_when_told(path: Path) -> None:
    model = aged_database(path)
    before = sorted(path.rglob("*"))
    shown = CliRunner().invoke(app, ["gc", str(path), "--min-age", "0"])
    assert shown.exit_code == 0
    assert "Would delete" in shown.output
    assert sorted(path.rglob("*")) == before
    done = CliRunner().invoke(app, ["gc", str(path), "--min-age", "0", "--delete", "--json"])
    document = json.loads(done.output)
    ssts = document["counts"]["compacted"]
    assert ssts["deletable"] > 0
    assert ssts["deletable_bytes"] > 0
    assert document["dry_run"] is False
    assert len(names(path, "compacted")) == ssts["found"] - ssts["deletable"]
    check(path, model)


def test_the_command_refuses_what_is_no_database(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["gc", str(tmp_path)])
    assert result.exit_code == 2
    assert "no SlateDB database" in result.output
