"""SlateDB databases for the harness.

Sound ones, made once:

- `fresh`: L0 SSTs and a sorted run, of one codec each; its ledger has a finished compaction.
- `busy`: segments. One compaction runs, with recorded ranges and notes beside the ledger, one waits, one is
  done but not committed, one has failed; a lease, and boundary files.
- `old`: written by SlateDB 0.15.
- `sound`: waits for a worker. It is never damaged.

Damage, to one object or to what it says:

1. Bytes of any object, also cut to nothing, gone, or another object's.
2. Records of a manifest or ledger, written anew as sound FlatBuffers.
3. Blocks of an SST, with checksums and descriptions that fit.
4. JSON beside the database; boundary files; names of objects.
5. Many junk entries in the ledger.
"""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lithify.base.clock import SystemClock
from lithify.base.errors import LithifyError
from lithify.base.ids import RandomIds, ulid_ms
from lithify.datasets.slatedb.format import ledger as ledger_codec
from lithify.datasets.slatedb.format import manifest as manifest_codec
from lithify.datasets.slatedb.format.flatbuffer import TableType, read, write
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.format.sst import encode_tail, seal, unseal
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.datasets.slatedb.model import Codec, DrainSpec, Manifest, Sst, SstInfo, TieredSpec
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt, FailedAttempt
from lithify.protocol.lease import Lease
from lithify.protocol.model import Compaction, CompactionState
from lithify.service.worker import Worker, WorkerOptions
from lithify.testing.engine import InlineEngine
from tests.compacting import compact, dataset_at
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
from tests.judge.official import Put, copy_database, open_db
from tests.judge.old import kept_old_database
from tests.judge.rows import read_database, visible_rows
from tests.protocol.rig import Rig, Template

_KEYS = 60
_SMALL_SST_BYTES = 1500
_JUNK_ENTRIES = 200


# ------------------------------------------------------------------------------- sound databases


def _write(path: Path, prefixes: bytes = b"", flushes: int = 3, codec: str | None = None) -> None:
    heads = [bytes([prefix]) for prefix in prefixes] or [b"k"]
    settings = {} if codec is None else {"compression_codec": codec}
    with open_db(
        path, segment_prefix_len=1 if prefixes else None, block_size=1024, settings=settings
    ) as database:
        for flush in range(flushes):
            for head in heads:
                rows = [
                    Put(head + b"%04d" % n, b"%d-%d " % (flush, n) + b"x" * 30)
                    for n in range(flush % 2, _KEYS, 2)
                ]
                database.write_batch(rows)
            database.flush()


def make_fresh(path: Path, codec: str | None) -> None:
    _write(path, codec=codec)
    compact(dataset_at(path, max_sst_size=_SMALL_SST_BYTES), take_over=True)
    _write(path, codec=codec)


def make_busy(path: Path) -> None:
    """Each of the four segments is in another state."""
    _write(path, b"abcd", flushes=4)
    dataset, clock = dataset_at(path, max_sst_size=_SMALL_SST_BYTES), SystemClock()
    coordinator = Rig(Template(path, {}), path).coordinator()
    coordinator.tick()
    done = Worker(dataset, InlineEngine(), clock, "done", options=WorkerOptions(max_concurrent_compactions=1))
    done.tick()  # claims and finishes
    done.tick()  # says so
    half = InlineEngine(slots=1, stepped=True)
    options = WorkerOptions(
        max_concurrent_compactions=1, heartbeat_interval_ms=0, heartbeat_min_interval_ms=0
    )
    running = Worker(dataset, half, clock, "running", options=options)
    running.tick()
    half.step()
    running.tick()
    ledger = dataset.ledger()
    assert ledger is not None
    waiting = [c for c in ledger.compactions if c.state is CompactionState.SCHEDULED]
    failed = waiting[-1]
    dataset.journal.add_attempt(failed.id, Attempt("w", "it broke", clock.now_ms()))
    spec = dataset.encode_spec(failed.spec)
    dataset.journal.add_failure(FailedAttempt(failed.id, "it broke", 5, clock.now_ms(), spec))
    dataset.update_ledger(lambda latest: transitions.fail(latest, failed.id))
    dataset.lease.write(Lease("lithify-x", is_ended=True, taken=coordinator.epoch), dataset.lease.look())
    (path / "gc").mkdir(exist_ok=True)
    for name in ("manifest", "compactions"):
        (path / "gc" / f"{name}.boundary").write_text("1", encoding="utf-8")


def make_sound(path: Path) -> None:
    _write(path, flushes=4)
    Rig(Template(path, {}), path).coordinator().tick()


# ------------------------------------------------------------------------------------ damage


def _latest(root: Path, folder: str) -> Path:
    return max((root / folder).glob(f"*.{folder}"))


def _state_file(root: Path, rng: random.Random) -> Path:
    """The latest manifest or ledger, seldom an older one."""
    folder = rng.choice(("manifest", "compactions"))
    files = sorted((root / folder).glob(f"*.{folder}"))
    return rng.choice(files) if rng.random() < 0.2 else files[-1]


def damage_state_bytes(root: Path, rng: random.Random) -> str:
    return damage_bytes(_state_file(root, rng), files_in(root), root, rng)


def damage_any_bytes(root: Path, rng: random.Random) -> str:
    return damage_bytes(rng.choice(files_in(root)), files_in(root), root, rng)


def damage_objects(root: Path, rng: random.Random) -> str:
    path = rng.choice(files_in(root))
    if rng.randrange(5) == 0:
        return copy_under_odd_name(path, root, rng)
    return replace_object(path, files_in(root), root, rng)


def _shape_of(path: Path, version: int) -> TableType[Any]:
    if path.suffix == ".compactions":
        return ledger_codec._LEDGER
    return manifest_codec._MANIFEST_V1 if version == 1 else manifest_codec._MANIFEST_V2


def damage_record(root: Path, rng: random.Random) -> str:
    path = _state_file(root, rng)
    data = path.read_bytes()
    (version,) = struct.unpack(">H", data[:2])
    shape = _shape_of(path, version)
    record = read(data[2:], shape, "sound")
    for _ in range(50):
        changed = record
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = damaged_record(changed, rng)
        try:
            path.write_bytes(data[:2] + write(shape, changed))
        except (ValueError, TypeError, AttributeError, LookupError, struct.error, OverflowError):
            continue  # the format cannot say this
        break
    return f"record of {path.relative_to(root)}"


_NUMBERS = ("index_offset", "index_len", "filter_offset", "filter_len", "stats_offset", "stats_len")


def _change_sst(root: Path, sst_id: str, change: Callable[[SstInfo], SstInfo]) -> None:
    """Describe an SST anew in the latest manifest."""
    path = _latest(root, "manifest")
    manifest = manifest_codec.decode_manifest(path.read_bytes(), "sound")

    def changed(sst: Sst) -> Sst:
        return replace(sst, info=change(sst.info)) if sst.id == sst_id else sst

    def tree_of(tree: Any) -> Any:
        def view_of(view: Any) -> Any:
            return replace(view, sst=changed(view.sst))

        runs = tuple(replace(run, views=tuple(map(view_of, run.views))) for run in tree.runs)
        return replace(tree, l0=tuple(map(view_of, tree.l0)), runs=runs)

    new = replace(manifest, root=tree_of(manifest.root), segments=tuple(map(tree_of, manifest.segments)))
    path.write_bytes(manifest_codec.encode_manifest(new))


def _ssts(root: Path) -> list[Sst]:
    manifest = manifest_codec.decode_manifest(_latest(root, "manifest").read_bytes(), "sound")
    return [view.sst for tree in manifest.trees() for view in tree.views()]


def damage_description(root: Path, rng: random.Random) -> str:
    """Numbers of one SST in the manifest."""
    sst = rng.choice(_ssts(root))
    field = rng.choice(_NUMBERS)
    before = getattr(sst.info, field)
    value = rng.choice((rng.choice(HOSTILE_NUMBERS), before + rng.randrange(-20, 21))) & ((1 << 64) - 1)
    numbers: dict[str, Any] = {field: value}
    _change_sst(root, sst.id, lambda info: replace(info, **numbers))
    return f"{field} of SST {sst.id} is {value}"


def damage_sst(root: Path, rng: random.Random) -> str:
    """One section of an SST, with a checksum and a description that fit."""
    sst = rng.choice(_ssts(root))
    path, info = root / "compacted" / f"{sst.id}.sst", sst.info
    data = path.read_bytes()
    ends = {"data": info.data_end, "filter": info.filter_offset + info.filter_len}
    ends |= {"index": info.index_offset + info.index_len, "stats": info.stats_offset + info.stats_len}
    starts = {"data": 0, "filter": info.filter_offset, "index": info.index_offset, "stats": info.stats_offset}
    parts = {name: data[starts[name] : end] for name, end in ends.items() if end > starts[name]}
    what = rng.choice(("index", "index", "stats", "data"))
    if what not in parts:
        return "nothing"
    if what == "data":
        parts[what] = _damaged_blocks(data, sst, rng)
    else:
        parts[what] = _damaged_seal(parts[what], info.compression, rng)
    _assemble(root, path, sst, parts)
    return f"{what} of SST {sst.id}"


def _damaged_seal(stored: bytes, codec: Codec, rng: random.Random) -> bytes:
    """A sealed block with damage before or after compression."""
    if rng.random() < 0.5:
        raw = bytes(unseal(stored, codec, "sound"))
        return seal(damaged(raw, rng) if rng.random() < 0.8 else bytes(rng.choice((0, 1, 1 << 20))), codec)
    body = damaged(stored[:-4], rng)
    return body + struct.pack(">I", zlib.crc32(body))


def _damaged_blocks(data: bytes, sst: Sst, rng: random.Random) -> bytes:
    """The data blocks with one damaged in place: it keeps its length, so that the index holds."""
    from lithify.datasets.slatedb.format.index import decode_index

    info = sst.info
    raw = unseal(data[info.index_offset : info.index_offset + info.index_len], info.compression, "sound")
    index = decode_index(raw, info, "sound")
    block = rng.randrange(len(index))
    start, end = int(index.offsets[block]), int(index.offsets[block + 1])
    body = damaged(data[start : end - 4], rng)[: end - start - 4].ljust(end - start - 4, b"\0")
    return data[:start] + body + struct.pack(">I", zlib.crc32(body)) + data[end : info.data_end]


def _assemble(root: Path, path: Path, sst: Sst, parts: dict[str, bytes]) -> None:
    position, places = 0, {}
    for name in ("data", "filter", "index", "stats"):
        places[name] = (position, len(parts.get(name, b"")))
        position += places[name][1]
    info = replace(
        sst.info,
        filter_offset=places["filter"][0],
        filter_len=places["filter"][1],
        index_offset=places["index"][0],
        index_len=places["index"][1],
        stats_offset=places["stats"][0] if places["stats"][1] else 0,
        stats_len=places["stats"][1],
    )
    path.write_bytes(b"".join(parts.get(name, b"") for name in places) + encode_tail(info, position))
    _change_sst(root, sst.id, lambda _: info)


def damage_notes(root: Path, rng: random.Random) -> str:
    """JSON beside the database, or more of it."""
    notes = files_in(root / "lithify")
    if not notes:
        return "nothing"
    path = rng.choice(notes)
    changed = damaged_json(path.read_bytes(), rng)
    if rng.random() < 0.5:
        path.write_bytes(changed)
    else:
        path.with_name(f"{rng.randrange(10)}-{path.name}").write_bytes(changed)
    return f"JSON of {path.relative_to(root)}"


def damage_boundary(root: Path, rng: random.Random) -> str:
    name = rng.choice(("manifest", "compactions"))
    text = rng.choice(
        ("", " ", "x", "-1", "1.5", "1e3", "٣", "0" * 30, "9" * 5000, *map(str, HOSTILE_NUMBERS))
    )
    (root / "gc").mkdir(exist_ok=True)
    (root / "gc" / f"{name}.boundary").write_text(text, encoding="utf-8")
    return f"{name}.boundary is {text[:40]!r}"


def add_junk(root: Path, rng: random.Random) -> str:
    """Entries in the ledger that nobody asked for, in any state."""
    path = _latest(root, "compactions")
    ledger = ledger_codec.decode_ledger(path.read_bytes(), "sound")
    manifest = manifest_codec.decode_manifest(_latest(root, "manifest").read_bytes(), "sound")
    count = rng.choice((1, 3, _JUNK_ENTRIES))
    junk = [_junk(manifest, rng) for _ in range(count)]
    path.write_bytes(_encoded(replace(ledger, compactions=(*ledger.compactions, *junk))))
    return f"{count} junk entries in {path.relative_to(root)}"


def _junk(manifest: Manifest, rng: random.Random) -> Compaction[Any, Any, Any]:
    tree = rng.choice(manifest.trees())
    views = [view.id for view in tree.l0]
    runs = [run.id for run in tree.runs]
    chosen = tuple(views[rng.randrange(len(views) + 1) :])
    ids = RandomIds(random.Random(rng.random()))
    new_id = ids.ulid(rng.choice((0, (1 << 48) - 1, *(ulid_ms(view) for view in views))))
    state = rng.choice(tuple(CompactionState))
    outputs: tuple[Sst, ...] = ()
    if state in (CompactionState.COMPACTED, CompactionState.COMPLETED):
        found = [view.sst for view in tree.views()]
        outputs = tuple(rng.sample(found, rng.randrange(len(found) + 1)))
    run_ids = tuple(rng.sample([*runs, 0, 7, (1 << 32) - 1], rng.randrange(len(runs) + 2)))
    spec: Any = TieredSpec(tree.prefix, chosen, run_ids, rng.choice((0, 1, 9, (1 << 32) - 1)))
    if rng.random() < 0.3:
        spec = DrainSpec(tree.prefix, chosen, run_ids)
    return Compaction(new_id, spec, state, outputs)


def _encoded(ledger: SlateLedger) -> bytes:
    unique = {c.id: c for c in ledger.compactions}
    return ledger_codec.encode_ledger(
        replace(ledger, compactions=tuple(unique[compaction_id] for compaction_id in sorted(unique)))
    )


_DAMAGES: tuple[tuple[Damage, int], ...] = (
    (damage_state_bytes, 3),
    (damage_any_bytes, 2),
    (damage_objects, 2),
    (damage_record, 6),
    (damage_description, 3),
    (damage_sst, 4),
    (damage_notes, 3),
    (damage_boundary, 1),
    (add_junk, 2),
)


# ---------------------------------------------------------------------------------- the commands


def _inspect_sst(it: Damaged, rng: random.Random) -> Sequence[str]:
    return ["inspect", "sst", *rng.choice(([], ["--json"])), rng.choice(it.objects)]


_LEASE = ("lithify/coordinator.json",)
_TIMES = ("--set", "slatedb.segments.pattern={u64:ms}")
_MOVES = ("--set", "slatedb.enable_trivial_move=true")

COMMANDS: tuple[Command, ...] = (
    Command("plan", options("plan", (), ("--full",), JSON, ("--full", "--json"), _TIMES), reads_only=True),
    Command(
        "compact",
        options("compact", (), ("--full",), ("--full", "--take-over"), ("--take-over", *JSON), _MOVES),
        weight=5,
        may_write=_LEASE,
    ),
    Command("status", options("status", (), JSON, _TIMES), reads_only=True, weight=2),
    Command("inspect manifest", options("inspect manifest", (), JSON, ("--id", "2")), reads_only=True),
    Command("inspect compactions", options("inspect compactions", (), JSON), reads_only=True),
    Command("inspect sst", _inspect_sst, reads_only=True),
    Command("gc", options("gc", (), JSON, ("--min-age", "0"), ("--wal-fences",)), reads_only=True),
    Command(
        "gc --delete",
        options("gc --delete", ("--min-age", "0"), ("--min-age", "0", "--wal-fences"), JSON),
        may_write=("manifest/",),
    ),
    Command("doctor", options("doctor --read-only", (), JSON), reads_only=True),
    Command("submit", options("submit", ("--full",), ("--l0", "all"), ("--full", *JSON), ("--run", "0"))),
    Command("wait", wait, reads_only=True),
    Command("cancel", with_ids("cancel")),
    Command("retry", with_ids("retry")),
    Command("coordinator", options("coordinator", (), ("--take-over",)), weight=2, may_write=_LEASE),
    Command(
        "run", options("run", ("--take-over",), ("--metrics-port", "0"), _MOVES), weight=3, may_write=_LEASE
    ),
    Command("worker", options("worker", ()), weight=3, helps=True),
)


def _claimed(root: Path) -> list[bytes]:
    """What a coordinator takes as it is: the ledger, and SSTs that no manifest names yet. Where there are
    any, also what they were made of: rows changed since then are in them as they were."""
    try:
        named = {sst.id for sst in _ssts(root)}
    except (LithifyError, ValueError, OSError):
        named = set()
    ssts = files_in(root / "compacted")
    has_outputs = any(path.stem not in named for path in ssts)
    return [path.read_bytes() for path in (*files_in(root / "compactions"), *(ssts if has_outputs else ()))]


class Databases:
    """The family."""

    name = "databases"
    commands = COMMANDS

    def prepare(self, folder: Path, place: Path) -> None:
        warm_up()  # or the case that needs a part of the kernel first would have taken the time to compile it
        for codec in (None, "Zstd", "Zlib", "Lz4", "Snappy"):
            make_fresh(folder / f"fresh-{codec}".lower(), codec)
        make_busy(folder / "busy")
        copy_database(kept_old_database("slatedb-0.15.0"), folder / "old")
        make_sound(folder / SOUND)

    def damage(self, prepared: Path, folder: Path, rng: random.Random) -> Damaged:
        names = sorted(path.name for path in prepared.iterdir() if path.name != SOUND)
        name = rng.choice((*names, "busy", "busy"))
        shutil.copytree(prepared / name, folder)
        ledger = dataset_at(folder).ledger()
        ids = ids_to_ask_for(ledger, rng)
        objects = tuple(str(path) for path in files_in(folder / "compacted"))
        what = damage_some(folder, _DAMAGES, (LithifyError, LookupError, OSError, ValueError), rng)
        # Who writes the ledger, or what it calls an output, can have anything committed.
        is_forged = _claimed(folder) != _claimed(prepared / name)
        return Damaged(
            str(folder),
            folder,
            f"{name}: {what}",
            ids=ids,
            objects=objects,
            is_forged=is_forged,
        )

    def seen(self, damaged: Damaged) -> Any:
        try:
            return visible_rows(read_database(damaged.url))
        except (AssertionError, Exception):
            return None  # whatever the foreign reader has against it

    def add_sound(self, prepared: Path, folder: Path) -> str:
        shutil.copytree(prepared / SOUND, folder)
        return str(folder)

    def was_helped(self, folder: Path) -> bool:
        ledger = dataset_at(folder).ledger()
        return ledger is not None and [c.state for c in ledger.compactions] == [CompactionState.COMPACTED]
