"""Iceberg tables for the harness.

Sound ones, made once, each in a catalog of its own:

- `new`: never compacted; rows deleted by position.
- `fresh`: partitioned by text and day, a branch and a tag; its ledger has a finished compaction.
- `equal`: rows deleted by value, which not every reader knows.
- `busy`: compactions in every state, with recorded ranges and notes beside the ledger; a lease.
- `sound`: waits for a worker, in the same catalog as each of the others. It is never damaged.

Damage, to one object or to what it says:

1. Bytes of any object, also cut to nothing, gone, or another object's.
2. Table metadata, ledger, lease and notes: JSON with something wrong in it.
3. Manifests and manifest lists: a record or what the file says of itself, written anew as sound Avro.
4. Footers and pages of Parquet files.
5. What the catalog says: another metadata file, or none.
6. Many junk entries in the ledger.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from lithify.base.clock import SystemClock
from lithify.base.errors import LithifyError
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.format.ownership import OWN_FOLDER
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt, FailedAttempt
from lithify.protocol.lease import Lease
from lithify.protocol.model import Compaction, CompactionState
from lithify.service.worker import Worker, WorkerOptions
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.avro import read_avro, write_avro
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    age_files,
    append,
    delete_equal,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
)
from tests.fuzz.commands import JSON, ids_to_ask_for, options, wait, with_ids
from tests.fuzz.damage import HOSTILE_NUMBERS, damaged, damaged_json, damaged_record
from tests.fuzz.family import SOUND, Command, Damaged
from tests.fuzz.objects import (
    Damage,
    copy_under_odd_name,
    damage_bytes,
    damage_some,
    files_in,
    replace_object,
)

_CATALOG, _NAME = "fuzz", ("db", "events")
_SOUND_NAME = ("db", SOUND)
_EAGER = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
_ROWS, _JUNK_ENTRIES = 6, 200


# ---------------------------------------------------------------------------------- sound tables


def _uri(folder: Path) -> str:
    return f"sqlite:///{folder}/catalog.db"


def _catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog(_CATALOG, uri=_uri(folder), warehouse=f"file://{folder}/lake")


def _new_catalog(folder: Path) -> SqlCatalog:
    folder.mkdir(parents=True)
    catalog = _catalog(folder)
    catalog.create_namespace("db")
    return catalog


def _fill(table: Table, days: int, files: int = 2, devices: str = "a") -> None:
    for day in range(days):
        for n in range(files):
            start = START + day * DAY + n * DAY / 4
            append(table, [row for device in devices for row in make_rows(_ROWS, start, DAY / 8, device)])


def make_new(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties=_EAGER)
    _fill(table, days=2)
    paths = [file.file_path for file in files_of(table)]
    delete_positions(table, {paths[0]: [1, 2], paths[1]: [0]})


def make_fresh(catalog: SqlCatalog) -> None:
    spec = PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "device"), PartitionField(1, 1001, DayTransform(), "day")
    )
    table = new_table(catalog, spec=spec, properties=_EAGER)
    _fill(table, days=2, devices="aü")
    compact(dataset_of(table))
    now = fresh(table)
    head = now.metadata.current_snapshot_id
    assert head is not None
    now.manage_snapshots().create_tag(head, "tag").create_branch(head, "branch").commit()
    _fill(table, days=1, devices="aü")


def make_equal(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties=_EAGER)
    _fill(table, days=2)
    delete_equal(table, [3, 4, 5])
    _fill(table, days=1)


def make_busy(catalog: SqlCatalog) -> None:
    """Each state is that of one day or two."""
    spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
    table = new_table(catalog, spec=spec, properties={**_EAGER, "lithify.small-task-bytes": "1"})
    _fill(table, days=6, files=3)
    dataset, clock = dataset_of(table), SystemClock()
    steps = Steps(dataset)
    steps.schedule()
    done = Worker(dataset, InlineEngine(), clock, "done", options=WorkerOptions(max_concurrent_compactions=1))
    done.tick()  # claims and finishes
    done.tick()  # says so
    half = InlineEngine(slots=1, stepped=True)
    options = WorkerOptions(
        max_concurrent_compactions=1, heartbeat_interval_ms=0, heartbeat_min_interval_ms=0
    )
    dataset.range_bytes = 1
    running = Worker(dataset, half, clock, "running", options=options)
    running.tick()
    half.step()
    running.tick()
    ledger = dataset.ledger()
    assert ledger is not None
    failed = [c for c in ledger.compactions if c.state is CompactionState.SCHEDULED][-1]
    dataset.journal.add_attempt(failed.id, Attempt("w", "it broke", clock.now_ms()))
    spec_text = dataset.encode_spec(failed.spec)
    dataset.journal.add_failure(FailedAttempt(failed.id, "it broke", 5, clock.now_ms(), spec_text))
    ledger = dataset.update_ledger(lambda latest: transitions.fail(latest, failed.id))
    dataset.lease.write(Lease("lithify-x", is_ended=True, taken=ledger.epoch), dataset.lease.look())
    states = {compaction.state for compaction in ledger.compactions}
    assert states == {
        CompactionState.COMPACTED,
        CompactionState.RUNNING,
        CompactionState.SCHEDULED,
        CompactionState.FAILED,
    }, states


_MAKERS = {"new": make_new, "fresh": make_fresh, "equal": make_equal, "busy": make_busy}


def make_sound(catalog: SqlCatalog) -> str:
    """The location of its metadata."""
    table = new_table(catalog, name=_SOUND_NAME, properties=_EAGER)
    _fill(table, days=1)
    Steps(dataset_of(table)).schedule()
    return fresh(table).metadata_location


# ---------------------------------------------------------------------------------------- damage


def _files(root: Path, suffix: str = "") -> list[Path]:
    """The objects of the table; the catalog is none."""
    return files_in(root / "lake", suffix)


def _own_files(root: Path) -> list[Path]:
    return [path for path in _files(root) if OWN_FOLDER in path.parts]


def _metadata_files(root: Path) -> list[Path]:
    return _files(root, ".metadata.json")


def _current_metadata(root: Path) -> Path:
    with sqlite3.connect(root / "catalog.db") as catalog:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        (location,) = catalog.execute(query, (_NAME[1],)).fetchone()
    return Path(location.removeprefix("file://"))


def _current_manifests(root: Path) -> list[Path]:
    """The manifest list of the head, and its manifests: what every command reads."""
    metadata = json.loads(_current_metadata(root).read_bytes())
    head = metadata["current-snapshot-id"]
    (name,) = [s["manifest-list"] for s in metadata["snapshots"] if s["snapshot-id"] == head]
    path = Path(name.removeprefix("file://"))
    rows = read_avro(path).records
    return [path, *(Path(row["manifest_path"].removeprefix("file://")) for row in rows)]


def damage_any_bytes(root: Path, rng: random.Random) -> str:
    return damage_bytes(rng.choice(_files(root)), _files(root), root, rng)


def damage_objects(root: Path, rng: random.Random) -> str:
    path = rng.choice(_files(root))
    return replace_object(path, _files(root, path.suffix), root, rng)


def damage_metadata(root: Path, rng: random.Random) -> str:
    path = _current_metadata(root) if rng.random() < 0.8 else rng.choice(_metadata_files(root))
    path.write_bytes(damaged_json(path.read_bytes(), rng))
    return f"metadata {path.name}"


def damage_avro(root: Path, rng: random.Random) -> str:
    """A record, or what the file says of itself."""
    path = rng.choice(_current_manifests(root) if rng.random() < 0.8 else _files(root, ".avro"))
    before = read_avro(path)
    for _ in range(50):
        match rng.randrange(8):
            case 0:
                key = rng.choice(sorted(before.said))
                text = damaged_json(before.said[key].encode(), rng).decode("utf-8", "replace")
                after = replace(before, said={**before.said, key: text})
            case 1:
                after = replace(before, schema=json.loads(_other_numbers(json.dumps(before.schema), rng)))
            case _:
                records = before.records
                for _ in range(rng.choice((1, 1, 1, 2, 3))):
                    records = damaged_record(records, rng)
                after = replace(before, records=records)
        try:
            write_avro(path, after)
        except Exception:
            continue  # the format cannot say this
        break
    return f"Avro of {path.relative_to(root)}"


def _other_numbers(text: str, rng: random.Random) -> str:
    """A schema in which another field has the id of one."""
    at = rng.choice(list(re.finditer(r'"field-id": \d+', text)))
    other = rng.choice((rng.choice(HOSTILE_NUMBERS), rng.choice((100, 101, 103, 500, 501, 517))))
    return f'{text[: at.start()]}"field-id": {other}{text[at.end() :]}'


def damage_parquet(root: Path, rng: random.Random) -> str:
    """The footer, its length, or what comes before it."""
    path = rng.choice(_files(root, ".parquet"))
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    start = len(data) - 8 - length
    match rng.randrange(4):
        case 0:
            other = rng.choice(HOSTILE_NUMBERS) & 0xFFFFFFFF
            path.write_bytes(data[:-8] + struct.pack("<I", other) + data[-4:])
            return f"the footer's length in {path.name}"
        case 1:
            path.write_bytes(data[:4] + damaged(data[4:start], rng)[: start - 4] + data[start:])
            return f"pages of {path.name}"
        case _:
            footer = damaged(data[start:-8], rng)
            path.write_bytes(data[:start] + footer + struct.pack("<I", len(footer)) + data[-4:])
            return f"the footer of {path.name}"


def damage_notes(root: Path, rng: random.Random) -> str:
    """The ledger, the lease, or what else we keep beside a table."""
    notes = _own_files(root)
    if not notes:
        return "nothing"
    path = rng.choice(notes if rng.random() < 0.5 else [max(p for p in notes if p.parent.name == "ledger")])
    path.write_bytes(damaged_json(path.read_bytes(), rng))
    return f"JSON of {path.relative_to(path.parents[2])}"


def damage_names(root: Path, rng: random.Random) -> str:
    return copy_under_odd_name(rng.choice(_own_files(root) or _files(root)), root, rng)


def damage_catalog(root: Path, rng: random.Random) -> str:
    location = rng.choice(
        (
            *("", "x", "file:///nowhere/x.metadata.json", "s3://nowhere/x.metadata.json", "file:///dev/null"),
            *(f"file://{path}" for path in (*_metadata_files(root), root / "lake")),
        )
    )
    with sqlite3.connect(root / "catalog.db") as catalog:
        update = "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?"
        catalog.execute(update, (location, _NAME[1]))
    return f"the catalog says {Path(location).name}"


def add_junk(root: Path, rng: random.Random) -> str:
    """Entries in the ledger that nobody asked for, in any state."""
    ledgers = [path for path in _own_files(root) if path.parent.name == "ledger"]
    if not ledgers:
        return "nothing"
    path = max(ledgers)
    ledger = LEDGERS.decode(path.read_bytes(), "sound")
    count = rng.choice((1, 3, _JUNK_ENTRIES))
    ids = RandomIds(random.Random(rng.random()))
    junk: list[Compaction[Any, Any, Any]] = []
    for _ in range(count):
        like = rng.choice(ledger.compactions)
        inputs = tuple(rng.sample(like.spec.inputs, rng.randrange(1, len(like.spec.inputs) + 1)))
        first = replace(like.spec.parts[0], inputs=inputs)
        spec = replace(
            like.spec,
            parts=(first, *rng.choice(((), (first,), like.spec.parts[1:]))),
            task=rng.choice((like.spec.task, "", "x" * 1000)),
            snapshot_id=rng.choice((like.spec.snapshot_id, rng.choice(HOSTILE_NUMBERS))),
            sort_order_id=rng.choice((0, 1, 99)),
        )
        new_id = ids.ulid(rng.choice((0, (1 << 48) - 1, 1_700_000_000_000)))
        outputs = rng.choice(((), like.outputs))
        junk.append(Compaction(new_id, spec, rng.choice(tuple(CompactionState)), outputs))
    entries = sorted((*ledger.compactions, *junk), key=lambda c: c.id)
    path.write_bytes(LEDGERS.encode(replace(ledger, compactions=tuple(entries))))
    return f"{count} junk entries in {path.name}"


_DAMAGES: tuple[tuple[Damage, int], ...] = (
    (damage_any_bytes, 3),
    (damage_objects, 2),
    (damage_metadata, 6),
    (damage_avro, 6),
    (damage_parquet, 4),
    (damage_notes, 4),
    (damage_names, 1),
    (damage_catalog, 1),
    (add_junk, 1),
)


# ---------------------------------------------------------------------------------- the commands


_OWN = (f"lake/db/events/{OWN_FOLDER}/",)

COMMANDS: tuple[Command, ...] = (
    Command("plan", options("plan", (), JSON), reads_only=True, weight=2),
    Command("compact", options("compact", (), ("--take-over",), JSON), weight=6, may_write=_OWN),
    Command("status", options("status", (), JSON), reads_only=True, weight=2),
    Command("gc", options("gc", (), JSON, ("--min-age", "0")), reads_only=True),
    Command("gc --delete", options("gc --delete", (), ("--min-age", "0"), JSON), weight=2, may_write=_OWN),
    Command("doctor", options("doctor --read-only", (), JSON), reads_only=True),
    Command("wait", wait, reads_only=True),
    Command("cancel", with_ids("cancel")),
    Command("retry", with_ids("retry")),
    Command("coordinator", options("coordinator", (), ("--take-over",)), weight=2, may_write=_OWN),
    Command("run", options("run", (), ("--metrics-port", "0")), weight=4, may_write=_OWN),
    Command("worker", options("worker", ()), weight=3, helps=True),
)


def _claimed(root: Path, *, has_outputs: bool) -> list[bytes]:
    """What a coordinator takes as it is: what we keep beside the table. Where that has outputs that no
    snapshot names yet, these too, and what they were made of: rows changed since are in them as they were.
    """
    data = _files(root, ".parquet") if has_outputs else ()
    return [path.read_bytes() for path in (*_own_files(root), *data)]


class Tables:
    """The family."""

    name = "tables"
    commands = COMMANDS

    def prepare(self, folder: Path, place: Path) -> None:
        sound = place.with_name(SOUND)
        location = make_sound(_new_catalog(sound))
        for name, make in _MAKERS.items():
            catalog = _new_catalog(place)
            make(catalog)
            catalog.register_table(_SOUND_NAME, location)
            catalog.engine.dispose()
            age_files(place / "lake")
            shutil.move(place, folder / name)
        shutil.move(sound, folder / SOUND)

    def damage(self, prepared: Path, folder: Path, rng: random.Random) -> Damaged:
        name = rng.choice((*sorted(_MAKERS), "busy"))
        shutil.copytree(prepared / name, folder)
        table = _catalog(folder).load_table(_NAME)
        ledger = dataset_of(table).ledger()
        has_outputs = ledger is not None and any(c.outputs or c.progress for c in ledger.active())
        ids = ids_to_ask_for(ledger, rng)
        impossible = (ArithmeticError, EOFError, LithifyError, LookupError, OSError, RecursionError)
        what = damage_some(folder, _DAMAGES, (*impossible, TypeError, ValueError, sqlite3.Error), rng)
        return Damaged(
            f"iceberg://{_CATALOG}/{'.'.join(_NAME)}",
            folder,
            f"{name}: {what}",
            ("--store-option", f"uri={_uri(folder)}"),
            ids=ids,
            is_forged=_claimed(folder, has_outputs=has_outputs)
            != _claimed(prepared / name, has_outputs=has_outputs),
        )

    def seen(self, damaged: Damaged) -> Any:
        # Its compiled decoder ends the process where lengths lie.
        safe = mock.patch("pyiceberg.avro.file.new_decoder", StreamingBinaryDecoder)
        try:
            with safe:
                rows = _catalog(damaged.folder).load_table(_NAME).scan().to_arrow().to_pylist()
            return sorted(repr(sorted(row.items())) for row in rows)
        except (AssertionError, Exception):
            return None  # whatever the foreign reader has against it

    def add_sound(self, prepared: Path, folder: Path) -> str:
        shutil.copytree(prepared / SOUND, folder)
        return f"iceberg://{_CATALOG}/{'.'.join(_SOUND_NAME)}"

    def was_helped(self, folder: Path) -> bool:
        ledger = dataset_of(_catalog(folder).load_table(_SOUND_NAME)).ledger()
        return ledger is not None and [c.state for c in ledger.compactions] == [CompactionState.COMPACTED]
