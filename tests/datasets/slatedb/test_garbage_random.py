"""Garbage collection of random databases: against a model written from the other side, and against the
official collector. The databases are state files and names only: no collector reads an SST."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lithify.base.ids import RandomIds, Ulid, ulid_ms
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, encode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import GarbageKind, GarbageOptions, collect
from lithify.datasets.slatedb.model import (
    Checkpoint,
    ExternalDb,
    Manifest,
    SortedRun,
    Sst,
    SstInfo,
    TieredSpec,
    Tree,
    View,
)
from lithify.protocol.model import Compaction, CompactionState, Ledger
from lithify.store.local import LocalStore
from lithify.testing import ManualClock, MemoryStore
from tests.judge.official import Admin

IDS = RandomIds()
STEP_MS = 10_000
"""Times in random databases are multiples of this before now, far apart for clocks that go on."""
STEPS = 12
ALL = frozenset(GarbageKind)


@dataclass(slots=True)
class Image:
    """A database as the bytes and ages of its objects, and what it was made of."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """By key without the root: the bytes, and the steps ago they were written."""
    manifests: dict[int, Manifest] = field(default_factory=dict)
    ledger: SlateLedger | None = None
    ties: tuple[uuid.UUID, ...] = ()
    """The checkpoints that it holds in its parent."""


@st.composite
def images(draw: st.DrawFn, now_ms: int, *, ties: bool = False) -> Image:
    """Manifests that name some of a set of SSTs, checkpoints that pin some of them, compactions files, a
    write-ahead log with fences, and notes, with `ties` also up to three ties to a parent. Ages are in
    steps, the present is step 0."""
    image = Image(ties=tuple(IDS.uuid() for _ in range(draw(st.integers(0, 3)) if ties else 0)))
    ages = st.integers(1, STEPS)

    def at(age: int) -> int:
        return now_ms - age * STEP_MS

    pool = [
        Sst(IDS.ulid(at(draw(st.integers(1, 3 * STEPS)))), SstInfo(b"a", None, 10, 10, 10, 0, 0, 0))
        for _ in range(draw(st.integers(1, 10)))
    ]
    for sst in pool:
        image.objects[f"compacted/{sst.id}.sst"] = (b"sst", draw(ages))

    count = draw(st.integers(1, 6))
    pinned = draw(st.lists(st.tuples(st.integers(1, count), st.integers(-3, 3)), max_size=4))
    ages_of_manifests = sorted((draw(ages) for _ in range(count)), reverse=True)
    for manifest_id in range(1, count + 1):
        chosen = draw(st.lists(st.sampled_from(pool), max_size=4, unique_by=lambda s: s.id))
        chosen.sort(key=lambda sst: sst.id, reverse=True)
        cut = draw(st.integers(0, len(chosen)))
        in_l0, in_run = chosen[:cut], chosen[cut:]
        manifest = Manifest(
            True,
            1,
            1,
            Tree(
                b"",
                IDS.ulid(at(draw(ages))) if draw(st.booleans()) else None,
                tuple(View(s.id, s) for s in in_l0),
                tuple(SortedRun(9 - n, (View(s.id, s),)) for n, s in enumerate(in_run)),
            ),
            replay_after_wal_id=draw(st.integers(0, 8)),
            wal_id_last_seen=draw(st.integers(0, 8)),
            external_dbs=tuple(
                ExternalDb("parent", tie, tie, (IDS.ulid(1),) if draw(st.booleans()) else ())
                for tie in image.ties
            ),
            checkpoints=tuple(
                Checkpoint(IDS.uuid(), target, max(0, (now_ms + ahead * STEP_MS) // 1000), 0)
                for target, ahead in pinned
                if target <= manifest_id
            ),
        )
        image.manifests[manifest_id] = manifest
        image.objects[manifest_name(manifest_id)] = (
            encode_manifest(manifest),
            ages_of_manifests[manifest_id - 1],
        )

    versions = draw(st.sampled_from([0, 1, 2, 3, 4, 4]))
    for version in range(1, versions + 1):
        states = draw(
            st.lists(
                st.tuples(ages, st.sampled_from(CompactionState)),
                min_size=draw(st.sampled_from([0, 1, 1, 1])),
                max_size=3,
            )
        )
        entries: list[SlateCompaction] = [
            Compaction(IDS.ulid(at(age)), TieredSpec(b"", (), (1,), 1), state) for age, state in states
        ]
        image.ledger = Ledger(1, tuple(sorted(entries, key=lambda c: c.id)))
        image.objects[f"compactions/{version:020d}.compactions"] = (
            encode_ledger(image.ledger),
            STEPS + 1 - 3 * version,
        )

    for wal_id in draw(st.sets(st.integers(1, 10))):
        image.objects[f"wal/{wal_id:020d}.sst"] = (draw(st.sampled_from([b"", b"log"])), draw(ages))
    noted = [c.id for c in image.ledger.compactions] if image.ledger is not None else []
    for compaction_id in [*noted, IDS.ulid(at(1))]:
        if draw(st.booleans()):
            folder = draw(st.sampled_from(["progress", "attempts"]))
            image.objects[f"lithify/{folder}/{compaction_id}/x.json"] = (b"{}", draw(ages))
    image.objects["lithify/coordinator.json"] = (b"{}", STEPS)
    return image


def manifest_name(manifest_id: int) -> str:
    return f"manifest/{manifest_id:020d}.manifest"


def latest_of(store: MemoryStore, root: str) -> str:
    return max(meta.key for meta in store.list(f"{root}/manifest"))


def standing(image: Image, now_ms: int) -> tuple[Checkpoint, ...]:
    """The checkpoints of the latest manifest that have not expired."""
    found = image.manifests[max(image.manifests)].checkpoints
    return tuple(c for c in found if not (c.expire_time_s and c.expire_time_s * 1000 <= now_ms))


def needed_ties(image: Image, now_ms: int) -> set[uuid.UUID]:
    needed = {max(image.manifests), *(c.manifest_id for c in standing(image, now_ms))}
    dbs = (db for manifest_id in needed for db in image.manifests[manifest_id].external_dbs)
    return {db.source_checkpoint_id for db in dbs if db.sst_ids}


def survivors(image: Image, now_ms: int, min_age_ms: int) -> set[str]:
    """What must be there after a collection, object by object: the model."""
    latest_id = max(image.manifests)
    latest = image.manifests[latest_id]
    checkpoints = standing(image, now_ms)
    changed = len(checkpoints) < len(latest.checkpoints)
    pins = {c.manifest_id for c in checkpoints}
    pinned = [image.manifests[i] for i in pins]
    compactions = image.ledger.compactions if image.ledger is not None else ()
    kept = set()
    for key, (_, age) in image.objects.items():
        folder, _, name = key.partition("/")
        young = age * STEP_MS <= min_age_ms
        if folder == "compacted":
            sst_id = Ulid(name.removesuffix(".sst"))
            keep = any(v.sst.id == sst_id for m in [latest, *pinned] for t in m.trees() for v in t.views())
            keep |= now_ms - ulid_ms(sst_id) <= min_age_ms
            keep |= not compactions or any(ulid_ms(sst_id) >= ulid_ms(c.id) for c in compactions)
            marker = latest.root.last_compacted_l0
            flushed = [v.sst.id for v in latest.root.l0] or ([marker] if marker is not None else [])
            keep |= all(ulid_ms(sst_id) >= ulid_ms(i) for i in flushed)
        elif folder == "manifest":
            number = int(name[:20])
            keep = young or number in pins or (number == latest_id and not changed)
        elif folder == "compactions":
            keep = young or int(name[:20]) == sum(k.startswith("compactions/") for k in image.objects)
        elif folder == "wal":
            number = int(name[:20])
            keep = young or number >= latest.replay_after_wal_id
            keep |= any(number in range(m.replay_after_wal_id + 1, m.wal_id_last_seen + 1) for m in pinned)
        else:
            states = {c.id: c.state for c in compactions}
            state = states.get(Ulid(name.split("/")[1])) if "/" in name else CompactionState.RUNNING
            keep = young or (state is not None and not state.is_terminal)
        if keep:
            kept.add(key)
    return kept


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([0, 0, 1, 5, STEPS]))
def test_nothing_needed_goes_and_everything_else_that_is_old_enough(data: st.DataObject, steps: int) -> None:
    now_ms = ManualClock().now_ms()
    image = data.draw(images(now_ms, ties=True))
    min_age_ms = steps * STEP_MS
    clock = ManualClock(now_ms)
    store = MemoryStore(clock)
    for key, (content, age) in image.objects.items():
        clock.jump_s(-age * STEP_MS / 1000)
        store.put(f"db/{key}", content)
        clock.jump_s(age * STEP_MS / 1000)
    pins = tuple(Checkpoint(tie, 1, 0, 0) for tie in image.ties)
    store.put("parent/" + manifest_name(1), encode_manifest(Manifest(True, 1, 1, Tree(), checkpoints=pins)))
    options = GarbageOptions(min_age_ms, False, ALL)
    expected = survivors(image, now_ms, min_age_ms)
    tied = needed_ties(image, now_ms)

    said = collect(store, DatabasePaths("db"), clock, GarbageOptions(min_age_ms, True, ALL))
    assert len(list(store.list("db"))) == len(image.objects)
    done = collect(store, DatabasePaths("db"), clock, options)
    assert {k: c.deletable for k, c in said.counts.items()} == {
        k: c.deletable for k, c in done.counts.items()
    }

    left = {meta.key.removeprefix("db/") for meta in store.list("db")}
    published = [key for key in left if key.startswith("manifest/") and key not in image.objects]
    assert left - {*published, "gc/manifest.boundary", "gc/compactions.boundary", "lithify/now"} == expected
    for key in (latest_of(store, "db"), latest_of(store, "parent")):
        manifest = decode_manifest(store.get(key), key)
        pinned = {c.id for c in manifest.checkpoints} | {
            db.final_checkpoint_id for db in manifest.external_dbs
        }
        assert pinned & set(image.ties) == tied
    if len(tied) == len(image.ties):
        assert collect(store, DatabasePaths("db"), clock, options).deletable == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([0, 3, 6]))
def test_the_official_collector_keeps_the_same(data: st.DataObject, steps: int) -> None:
    now_ms = int(time.time() * 1000)
    image = data.draw(images(now_ms - STEP_MS // 2))
    min_age_ms = steps * STEP_MS
    folder = Path(tempfile.mkdtemp(prefix="lithify-gc-"))
    try:
        for name in ("ours", "official"):
            for key, (content, age) in image.objects.items():
                file = folder / name / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                written_s = now_ms / 1000 - STEP_MS / 2000 - age * STEP_MS / 1000
                os.utime(file, (written_s, written_s))
        Admin(folder / "official").run_gc(min_age_ms=min_age_ms, wal_fences=True)
        store, root = LocalStore(), str(folder / "ours").lstrip("/")
        collect(store, DatabasePaths(root), ManualClock(now_ms), GarbageOptions(min_age_ms, False, ALL))
        for kind in ("manifest", "compactions", "compacted", "wal", "gc"):
            ours, theirs = (
                {p.name: p.read_bytes() if kind == "gc" else b"" for p in (folder / name / kind).glob("*")}
                for name in ("ours", "official")
            )
            ours.pop(f"{kind}.boundary#0", None)
            assert ours == theirs, kind
    finally:
        shutil.rmtree(folder)
