"""Garbage collection on real databases, judged by the official client."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lithify
from lithify.base import events
from lithify.base.errors import CorruptObject, Refused, StoreError, VersionConflict
from lithify.base.events import Event
from lithify.base.ids import RandomIds, Ulid, ulid_ms
from lithify.cli.main import app
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import (
    Count,
    GarbageKind,
    GarbageOptions,
    GarbageReport,
    collect,
)
from lithify.datasets.slatedb.settings import GarbageCollectorSettings
from lithify.protocol.attempts import Attempt, FailedAttempt
from lithify.protocol.model import Compaction, Ledger
from lithify.store.keys import is_staging_name
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.store.versions import VersionedFiles
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing import FaultyStore, ManualClock, MemoryStore, StoreFault, crash_at_every_call
from tests.cli.invoking import invoke, invoke_json
from tests.compacting import check_state_files, compact, dataset_at
from tests.datasets.slatedb.collecting import (
    AT_ONCE,
    Model,
    age_files,
    aged_database,
    check,
    compact_well,
    gc,
    in_an_hour,
    names,
    write,
)
from tests.judge.official import Admin, copy_database, open_db, open_reader

IDS = RandomIds()


def test_a_negative_age_is_refused() -> None:
    with pytest.raises(Refused, match="negative"):
        GarbageOptions(min_age_ms=-1)


# Real databases


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def test_the_official_collector_deletes_the_same(path: Path, tmp_path: Path) -> None:
    model = aged_database(path)
    official = copy_database(path, tmp_path / "official")
    before = names(path, "compacted")
    report = gc(path, options=replace(AT_ONCE, kinds=frozenset(GarbageKind)))
    Admin(official).run_gc(min_age_ms=0, wal_fences=True)
    assert names(path, "compacted") == names(official, "compacted") < before
    assert report.counts[GarbageKind.COMPACTED].deletable == len(before) - len(names(path, "compacted"))
    for folder in ("manifest", "compactions"):
        assert names(path, folder) == names(official, folder), folder
        assert (path / f"gc/{folder}.boundary").read_bytes() == (
            official / f"gc/{folder}.boundary"
        ).read_bytes()
    assert names(path, "wal") == names(official, "wal")
    assert report.counts[GarbageKind.WAL].deletable
    assert report.counts[GarbageKind.WAL_FENCE].deletable
    check_state_files(dataset_at(path), path)
    check(path, model)


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(path: Path) -> None:
    aged_database(path)
    before = sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*"))
    clock = ManualClock(int(time.time() * 1000))
    said = gc(path, clock=clock, options=replace(AT_ONCE, dry_run=True))
    assert sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*")) == before
    done = gc(path, clock=clock)
    assert done.counts[GarbageKind.CHECKPOINT].deletable == 2
    assert done.counts[GarbageKind.COMPACTED].deletable_bytes > 0
    one_more = {
        GarbageKind.MANIFEST: replace(
            said.counts[GarbageKind.MANIFEST], found=said.counts[GarbageKind.MANIFEST].found + 1
        )
    }
    assert {**said.counts, **one_more} == done.counts
    assert said.sst_cutoff == done.sst_cutoff
    assert gc(path, clock=clock).deletable == 0


def test_what_is_young_stays(path: Path) -> None:
    aged_database(path)
    report = gc(path, options=GarbageOptions(dry_run=False))
    assert (
        report.counts[GarbageKind.COMPACTED].deletable,
        report.counts[GarbageKind.MANIFEST].deletable,
        report.counts[GarbageKind.COMPACTIONS].deletable,
    ) == (0, 0, 0)
    assert report.sst_cutoff.reason == "the minimum age"


def test_a_database_without_a_coordinator_keeps_every_sst(path: Path) -> None:
    with open_db(path) as database:
        model = write(database, 3, b"v")
    before = names(path, "compacted")
    report = gc(path, clock=in_an_hour())
    assert report.counts[GarbageKind.COMPACTIONS] == Count(0, 0)
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
    assert report.counts[GarbageKind.COMPACTED].deletable
    assert report.counts[GarbageKind.MANIFEST].deletable
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
            assert report.counts[GarbageKind.MANIFEST].deletable
            assert dict(database.scan()) == model
    check(path, model)


def test_outputs_of_a_compaction_under_way_survive(path: Path) -> None:
    reports: list[GarbageReport] = []
    with open_db(path) as database:
        model = write(database, 4, b"v", keys=3000)

        def collect_now(event: Event) -> None:
            if isinstance(event, events.Compacted):
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
    with pytest.raises(CorruptObject, match="pins this manifest, which is missing"):
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
        gc(path, clock=in_an_hour())  # at once, one that was written in this millisecond would be too young
        assert names(path, "manifest") == {f"{slept_at.id + 16:020d}.manifest"}

        with pytest.raises(VersionConflict):
            sleeper.publish(slept_at, slept_at.data)
        (path / f"manifest/{slept_at.id + 1:020d}.manifest").unlink()
        seen = sleeper.confirmed()
        assert seen is not None
        assert seen.id == slept_at.id + 16

        model |= write(database, 1, b"b")
    assert max(names(path, "manifest")) > f"{slept_at.id + 16:020d}"
    check(path, model)


def test_what_cannot_be_read_ends_the_run_before_anything_is_written(path: Path) -> None:
    aged_database(path)
    ledger = max((path / "compactions").iterdir())
    ledger.write_bytes(b"no ledger")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(Refused, match="format version"):
        gc(path, clock=in_an_hour())
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_no_database_is_refused_before_anything_is_written(path: Path) -> None:
    path.mkdir()
    with pytest.raises(Refused, match="no SlateDB database"):
        gc(path)
    assert not list(path.iterdir())


def test_a_clock_that_is_ahead_takes_no_checkpoint_from_a_reader(path: Path) -> None:
    model = aged_database(path)
    checkpoint = Admin(path).create_checkpoint(lifetime_ms=600_000)
    with open_db(path) as database:
        write(database, 4, b"newer")
        compact_well(dataset_at(path, checkpoint_lifetime_s=0))
        write(database, 2, b"newest")
        store, root = open_store(str(path))
        collect(store, DatabasePaths(root), in_an_hour(), AT_ONCE)
        with open_reader(path, checkpoint=checkpoint) as reader:
            assert dict(reader.scan()) == model


def test_what_is_needed_again_just_before_it_is_deleted_stops_its_kind(path: Path) -> None:
    """Whatever brings it back: an old manifest that somebody put in place as the newest."""
    with open_db(path) as database:
        model = write(database, 4, b"old")
        early = max((path / "manifest").iterdir())
        compact_well(dataset_at(path, checkpoint_lifetime_s=0))
        model |= write(database, 1, b"new")
    is_restored = False

    def restore(_number: int, call: Call) -> StoreFault | None:
        nonlocal is_restored
        if call.method == "list" and call.key.endswith("compacted") and not is_restored:
            is_restored = True
            newest = int(max((path / "manifest").iterdir()).stem)
            (path / "manifest" / f"{newest + 1:020d}.manifest").write_bytes(early.read_bytes())
        return None

    ssts = names(path, "compacted")
    store, _ = open_store(str(path))
    clock = in_an_hour()
    with pytest.raises(Refused, match="added it again"):
        gc(path, clock=clock, store=FaultyStore(store, restore))
    assert is_restored
    assert names(path, "compacted") == ssts
    with open_reader(path) as reader:
        assert dict(reader.scan()) == model


def test_a_crash_at_any_store_call_loses_nothing_and_the_next_run_finishes(
    path: Path, tmp_path: Path
) -> None:
    """In memory; the official client judges each state that a crash can leave."""
    model = aged_database(path)
    now_ms = int(time.time() * 1000)
    files = [file for file in path.rglob("*") if file.is_file() and not is_staging_name(file.name)]
    objects = {f"db/{file.relative_to(path)}": file.read_bytes() for file in files}

    def make_store() -> ObjectStore:
        clock = ManualClock(now_ms - 1)
        store = MemoryStore(clock)
        for key, data in objects.items():
            store.put(key, data)
        clock.jump_s(0.001)
        return store

    def run(store: ObjectStore) -> None:
        collect(store, DatabasePaths("db"), ManualClock(now_ms), AT_ONCE)

    def keys(store: ObjectStore) -> frozenset[str]:
        return frozenset(meta.key for meta in store.list("db"))

    finished = make_store()
    run(finished)
    states: set[frozenset[str]] = set()
    for site, store in crash_at_every_call(make_store, run):
        if keys(store) not in states:
            states.add(keys(store))
            left = tmp_path / str(len(states))
            for key in keys(store):
                file = left / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(store.get(key))
            check_state_files(dataset_at(left / "db"), left / "db")
            check(left / "db", model)
        # What a crash leaves is complete garbage or none, so the next run ends where one run would.
        run(store)
        assert keys(store) == keys(finished), site
    assert len(states) > 20


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


def test_the_command_does_with_each_kind_as_the_settings_say(path: Path) -> None:
    model = aged_database(path)
    age_files(path)
    options = "slatedb.garbage_collector_options"
    sets = [f"{options}.manifest_options.min_age=7d", f"{options}.wal_options.dry_run=true"]
    given = [part for one in sets for part in ("--set", one)]
    before = {folder: names(path, folder) for folder in ("manifest", "wal", "compactions")}
    said = invoke_json("gc", *given, path)
    assert (said["dry_run"], said["reported_only"]) == (True, [])
    shown = invoke("gc", "--delete", *given, path)
    assert "the settings set dry_run" in shown.stdout
    assert names(path, "manifest") >= before["manifest"]
    assert names(path, "wal") == before["wal"]
    assert names(path, "compactions") < before["compactions"]
    again = invoke_json("gc", "--delete", "--min-age", "1h", *given, path)
    assert again["reported_only"] == ["wal"]
    assert again["counts"]["manifest"]["deletable"] > 0
    assert again["counts"]["wal"]["deletable"] > 0
    assert not names(path, "manifest") >= before["manifest"]
    assert names(path, "wal") == before["wal"]
    every = {f"{options}.{name}.dry_run": True for name in GarbageCollectorSettings.model_fields}
    with lithify.open(str(path), settings=every) as database:
        document = database.collect_garbage(delete=True, min_age_s=0).document
    assert set(document["reported_only"]) == set(document["counts"])
    assert invoke_json("gc", "--delete", path)["counts"]["wal"]["deletable"] > 0
    assert names(path, "wal") < before["wal"]
    check(path, model)


def test_fences_are_deleted_when_asked_for(path: Path) -> None:
    model = aged_database(path)
    found = invoke_json("gc", "--delete", "--wal-fences", "--min-age", "0", path)
    assert found["counts"]["wal_fence"]["deletable"] > 0
    assert found["reported_only"] == []
    assert invoke_json("gc", "--wal-fences", "--min-age", "0", path)["counts"]["wal_fence"]["deletable"] == 0
    check(path, model)


def test_the_command_refuses_what_is_no_database(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["gc", str(tmp_path)])
    assert result.exit_code == 2
    assert "no SlateDB database" in result.output


# What Lithify itself leaves


def test_notes_about_compactions_go_with_them(path: Path) -> None:
    model = aged_database(path)
    dataset = dataset_at(path)
    ledger = dataset.ledger()
    assert ledger is not None
    finished = ledger.compactions[-1].id
    active = Ulid(IDS.ulid(ulid_ms(finished) + 1))
    spec = ledger.compactions[-1].spec
    dataset.update_ledger(lambda latest: latest.add(Compaction(active, spec)))
    journal = dataset.journal
    for compaction_id in (finished, active, IDS.ulid(1)):
        journal.add_attempt(compaction_id, Attempt("w", "because", 1))
        journal.note_finished(compaction_id, "w", ["last"])
    journal.add_failure(FailedAttempt(finished, "because", 3, 1, "spec"))

    young = gc(path, options=GarbageOptions(dry_run=False)).counts
    assert (young[GarbageKind.PROGRESS], young[GarbageKind.ATTEMPTS]) == (Count(3, 0), Count(3, 0))
    report = gc(path)
    assert report.counts[GarbageKind.ATTEMPTS] == replace(
        report.counts[GarbageKind.ATTEMPTS], found=3, deletable=2
    )
    assert report.counts[GarbageKind.PROGRESS].deletable == 2
    assert journal.compactions() == {active}
    assert [failure.compaction for failure in journal.failures()] == [finished]
    dataset.update_ledger(lambda latest: Ledger(latest.epoch, latest.compactions[:-1]))
    check(path, model)


def test_half_written_files_go_when_nothing_is_added_to_them(path: Path) -> None:
    model = aged_database(path)
    store, root = open_store(str(path))
    with store.open_writer(f"{root}/compacted/{IDS.ulid(1)}.sst") as writer:
        writer.write(b"half")
        half_written = [path / name for name in ("wal/00000000000000000099.sst#1", "manifest/1.manifest#7")]
        lock = path / "gc/manifest.boundary#0"
        for file in (*half_written, lock):
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"half")
        assert gc(path, options=GarbageOptions(dry_run=False)).counts[GarbageKind.STAGED] == Count(3, 0)
        report = gc(path, clock=in_an_hour())
        assert (report.counts[GarbageKind.STAGED].found, report.counts[GarbageKind.STAGED].deletable) == (
            3,
            3,
        )
        assert not any(file.exists() for file in half_written)
        assert lock.exists()
        with pytest.raises(StoreError):
            writer.commit()
    assert {file.name for file in path.rglob("*#*")} == {lock.name, "coordinator.json#0"}, "locks stay"
    check(path, model)


@pytest.mark.parametrize("seed", range(8))
def test_failures_of_the_store_lose_nothing_and_the_next_runs_finish(path: Path, seed: int) -> None:
    """Until one run gets through, each may fail at any call, with or without an effect."""
    model = aged_database(path)
    copy_database(path, path.with_name("untroubled"))
    clock = ManualClock(int(time.time() * 1000))
    gc(path.with_name("untroubled"), clock=clock)
    rng = random.Random(seed)
    for _ in range(1000):
        with suppress(StoreError):
            gc(path, clock=clock, store=FaultyStore.seeded(open_store(str(path))[0], rng, 0.05))
            break
    else:
        pytest.fail("no run got through")
    for folder in ("compacted", "manifest", "compactions", "wal"):
        got, expected = names(path, folder), names(path.with_name("untroubled"), folder)
        # A lost answer may have published the manifest without expired checkpoints twice.
        assert got == expected or (folder == "manifest" and max(got) > max(expected))
    check(path, model)


def test_what_may_not_be_deleted_keeps_nothing_else_from_it(path: Path) -> None:
    """A legal hold, or a policy of the bucket, on the oldest object of each folder that was to go."""
    model = aged_database(path)
    copy_database(path, path.with_name("free"))
    gc(path.with_name("free"), clock=in_an_hour())
    folders = ("compacted", "manifest", "compactions")
    kept = {folder: names(path.with_name("free"), folder) for folder in folders}
    held = {folder: min(names(path, folder) - kept[folder]) for folder in folders}

    class Holding(WrappedStore):
        def delete(self, key: str) -> None:
            if key.rpartition("/")[2] in held.values():
                raise StoreError(f"delete {key}: it is held")
            super().delete(key)

    with pytest.raises(StoreError, match="it is held"):
        gc(path, clock=in_an_hour(), store=Holding(open_store(str(path))[0]))
    for folder in folders:
        assert names(path, folder) == kept[folder] | {held[folder]}
    check(path, model)
