"""One run: everybody at work while things go wrong, then peace, then nothing may be left to do.

1. The database is created. Each *seat* (a coordinator, some workers, a writer, a garbage collector,
   readers, a person) is taken by one process after another: when one dies, the next takes
   its seat after a while, under a new name. A coordinator or writer that falls asleep for long is
   replaced meanwhile, and wakes up as a zombie.
2. For `chaos_ms` things go wrong as the scenario says. The judge looks at every write and deletion.
3. Then nothing goes wrong any more. Within `SETTLE_MS` all compactions must be finished and the planner
   must have nothing left to propose.
4. The writer flushes a few rows more, so that the collector's limits move beyond all garbage; once these
   are compacted too, checkpoints are old and the collector has run, only what is needed may be left,
   and a last look at the database must show every row of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lithify.base.errors import CoordinatorAlive, Fenced, StoreError
from lithify.base.ids import ulid_ms
from lithify.datasets.slatedb.format.paths import DatabasePaths, parse_sst_key
from lithify.datasets.slatedb.model import Manifest, Tree
from lithify.datasets.slatedb.planning.plan import TieredPolicy, propose
from lithify.service.worker_pool import QUARANTINE_PAUSE
from lithify.testing.faulty import Crash
from simulator import rules
from simulator.core.outcome import Outcome, Violation
from simulator.judge import Judge
from simulator.replaced import replacements
from simulator.rows import newest_l0_ms
from simulator.scenario import (
    CHECKPOINT_LIFETIME_S,
    MAX_GC_MIN_AGE_MS,
    MAX_SKEW_MS,
)
from simulator.services import (
    replaced_in_runs,
    run_collector_process,
    run_coordinator_process,
    run_once_process,
    run_worker_process,
)
from simulator.slatedb import run_slatedb_process
from simulator.visitor import (
    forgive_failures,
    remove_eternal_checkpoints,
    run_person,
    run_reader,
)
from simulator.world import ROOT, Process, WatchedStore, World
from simulator.writer import Writer

_PATHS = DatabasePaths(ROOT)
SETTLE_MS = QUARANTINE_PAUSE.max_ms + 300_000
"""So soon everything must have come to rest once nothing goes wrong any more: the longest pause, the
heartbeat timeout, the pause after two failures of the same work, and some time to work."""
_LOOK_MS = 1_000
_MAX_REFUSALS = 3
_MAX_RESTART_MS = 4_000
_COLLECT_MS = CHECKPOINT_LIFETIME_S * 1000 + MAX_GC_MIN_AGE_MS + 12_000


def simulate(seed: int, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play one seed. `trace` is given a line for everything that happens."""
    world = World(seed, trace=trace)
    started_ms = world.now_ms
    judge = Judge(world)
    world.watcher = judge
    with replacements(world), replaced_in_runs():
        try:
            _create_database(world)
            _take_seats(world)
            world.scheduler.run_until(started_ms + world.scenario.chaos_ms)
            world.calm()
            _keep(world, forgive_failures)
            _settle(world, judge)
            _clean_up(world, judge)
        except Violation:
            pass  # it is the world's
        finally:
            for process in world.processes:
                process.kill()
            world.watcher = None
            world.scheduler.close()
    return Outcome(seed, world.violation, world.counts, world.now_ms - started_ms)


def _create_database(world: World) -> None:
    prefixes = world.scenario.segments
    empty = Manifest(
        initialized=True,
        writer_epoch=0,
        compactor_epoch=0,
        root=Tree(),
        segment_extractor_name="first-byte" if prefixes else None,
    )
    founder = world.process("writer")
    founder.is_dead = True
    store = WatchedStore(world, founder)
    store.create(f"{_PATHS.manifest_folder}/{1:020}.manifest", world.codecs.encode_manifest(empty))


# Seats


def _take_seats(world: World) -> None:
    for _ in range(world.scenario.workers):
        _seat(world, "worker", run_worker_process)
    _seat(world, "coordinator", _coordinate)
    _seat(world, "writer", _write)
    _seat(world, "collector", run_collector_process)
    _seat(world, "reader", run_reader)
    if world.scenario.meddling:
        _seat(world, "person", run_person)
    if world.scenario.slatedb_pause_ms:
        world.scheduler.spawn(lambda: _open_slatedb(world))
    if world.scenario.second_pause_ms:
        world.scheduler.spawn(lambda: _start_another(world))


def _open_slatedb(world: World) -> None:
    """Somebody opens the database with a coordinator inside, now and then, as long as things go wrong."""
    while not world.is_calm:
        world.scheduler.sleep_ms(world.rng.randint(1, 2 * world.scenario.slatedb_pause_ms))
        if not world.is_calm:
            _live(world.process("slatedb"), run_slatedb_process)


def _start_another(world: World) -> None:
    """Somebody starts a coordinator of Lithify's, or a one-shot run, now and then, whether there is one or
    not."""
    while not world.is_calm:
        world.scheduler.sleep_ms(world.rng.randint(1, 2 * world.scenario.second_pause_ms))
        if not world.is_calm:
            refusals = world.refusals
            is_run = world.rng.random() < 0.5
            body = run_once_process if is_run else partial(run_coordinator_process, take_over=False)
            _live(world.process("coordinator"), body)
            world.refusals = refusals  # whoever has the seat was not refused


def _seat(world: World, kind: str, body: Callable[[Process], None]) -> None:
    """Let processes of a kind follow each other, until one is replaced in its sleep."""

    def sit() -> None:
        while True:
            process = world.process(kind)
            replaced = False

            def replace_sleeper() -> None:
                nonlocal replaced
                if kind in _REPLACED and not replaced and world.rng.random() < 0.7:
                    replaced = True
                    world.count(f"event: {kind} replaced in its sleep")
                    _seat(world, kind, _REPLACED[kind])

            process.on_pause = replace_sleeper
            _live(process, body)
            if replaced:
                return
            world.scheduler.sleep_ms(world.rng.randint(1, _MAX_RESTART_MS))

    world.scheduler.spawn(sit, world.rng.randint(0, _LOOK_MS))


def _write(process: Process) -> None:
    Writer(process).run()


def _take_over(process: Process) -> None:
    run_coordinator_process(process, take_over=True)


def _coordinate(process: Process) -> None:
    """Once some have refused to start, a person who sees that nothing of SlateDB's is open says so."""
    world = process.world
    is_open = any(other.kind == "slatedb" and not other.is_dead for other in world.processes)
    take_over = world.refusals >= _MAX_REFUSALS and not is_open
    if take_over:
        world.count("event: coordinator told to take over")
    run_coordinator_process(process, take_over=take_over)


_REPLACED: dict[str, Callable[[Process], None]] = {"coordinator": _take_over, "writer": _write}


def _live(process: Process, body: Callable[[Process], None]) -> None:
    """Run a process to its end. Dying, being fenced and an unreachable store are legal ends."""
    try:
        body(process)
    except Crash:
        process.log("dies")
    except (Fenced, StoreError, CoordinatorAlive) as error:
        process.world.count(f"event: {process.kind} ended by {type(error).__name__}")
        if isinstance(error, CoordinatorAlive):
            process.world.refusals += 1
        elif process.kind == "coordinator":
            process.world.refusals = 0
        process.log(f"ends: {error}")
    except Violation:
        raise
    except Exception as error:
        raise process.world.fail(rules.SOUND, f"{process.name}: {type(error).__name__}: {error}") from error
    else:
        process.world.count(f"event: {process.kind} stopped")
        process.log("stops")
    finally:
        process.kill()
        process.on_death()
    if process.world.violation is not None:
        raise process.world.violation


# The end


def _keep(world: World, body: Callable[[Process], None]) -> None:
    """Let a person put something in order."""
    world.scheduler.spawn(lambda: _live(world.process("coordinator"), body))


def _settle(world: World, judge: Judge) -> None:
    """Let everything come to rest."""
    deadline_ms = world.now_ms + SETTLE_MS
    while (busy := _busy(world, judge)) is not None:
        if world.now_ms >= deadline_ms:
            raise world.fail(rules.DRAINED, f"{SETTLE_MS / 1000:.0f} s of peace were not enough: {busy}")
        world.scheduler.run_until(world.now_ms + _LOOK_MS)


def _busy(world: World, judge: Judge) -> str | None:
    """What is still to be done."""
    if judge.ledger is None or judge.manifest is None:
        return "there is no ledger yet"
    world.is_quiet = True
    ledger, manifest = judge.ledger[1], judge.manifest[1]
    active = ledger.active()
    if active:
        return f"compactions are active: {[(c.id, c.state.value, c.worker) for c in active]}"
    unflushed = sum(1 for _ in world.model.after(manifest.last_l0_seq))
    if unflushed:
        return f"the writer has {unflushed} rows that it cannot flush"
    policy = TieredPolicy(min_compaction_sources=world.scenario.min_compaction_sources)
    proposals = propose(manifest, ledger, policy).proposals
    return f"the planner still proposes {proposals}" if proposals else None


def _clean_up(world: World, judge: Judge) -> None:
    """Let all garbage of before become collectable, and look whether it was collected."""
    before_ms = world.now_ms
    deadline_ms = before_ms + SETTLE_MS
    while not _is_younger(judge, before_ms + MAX_SKEW_MS):
        if world.now_ms >= deadline_ms:
            raise world.fail(rules.DRAINED, "new rows are not compacted any more")
        world.is_quiet = False
        world.scheduler.run_until(world.now_ms + _LOOK_MS)
    _settle(world, judge)
    _keep(world, remove_eternal_checkpoints)
    world.scheduler.run_until(world.now_ms + _COLLECT_MS)
    left = {meta.key for meta in world.objects.list(_PATHS.compacted_folder)} - judge.live_keys()
    if old := sorted(key for key in left if _sst_ms(key) < before_ms - MAX_SKEW_MS):
        raise world.fail(rules.CLEAN, f"SSTs that nobody needs are left: {old}")
    notes = [m.key for m in world.objects.list(f"{ROOT}/lithify") if m.last_modified_ms < before_ms]
    if old := [key for key in notes if "/progress/" in key or "/attempts/" in key]:
        raise world.fail(rules.CLEAN, f"notes on compactions that are over are left: {old}")


def _is_younger(judge: Judge, than_ms: int) -> bool:
    """Whether all compactions in the ledger are, and the newest L0 SST. Some there must be, or nothing
    is collected."""
    assert judge.ledger is not None
    assert judge.manifest is not None
    ids = [compaction.id for compaction in judge.ledger[1].compactions]
    newest_ms = max(map(newest_l0_ms, judge.manifest[1].trees()))
    return bool(ids) and min(map(ulid_ms, ids)) > than_ms and newest_ms > than_ms


def _sst_ms(key: str) -> int:
    sst_id = parse_sst_key(key)
    assert sst_id is not None
    return ulid_ms(sst_id)
