"""Rules of Lithify, each broken on purpose: the simulator has to notice every one.

A mutant replaces one function by a wrong one for as long as a simulation runs. It says which invariants
may notice it: often several do, and the first to look wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from simulator.scenario import RENEW_AFTER_MS

from lithify.base.errors import LostOwnership
from lithify.base.ids import Ulid, ulid_ms
from lithify.coordination import leadership
from lithify.coordination.leadership import Leadership
from lithify.coordination.leases import ObjectLease
from lithify.coordination.sidecar import ObjectJournal
from lithify.datasets.slatedb.compaction import commit, prepare, transform, validate
from lithify.datasets.slatedb.compaction.commit import Commit
from lithify.datasets.slatedb.compaction.task import MergeTask, RowRules
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage import collection, retention
from lithify.datasets.slatedb.garbage.retention import Cutoff
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol import transitions
from lithify.protocol.heartbeat_gate import ProgressGate, SilenceWatch
from lithify.protocol.lease import Lease, encode_lease
from lithify.protocol.model import CompactionState
from lithify.protocol.transitions import AnyCompaction, AnyLedger, IllegalTransition
from lithify.service.worker import Worker
from lithify.store import versions
from lithify.store.versions import VersionedFiles
from simulator import rules

FIRST_SEED = 5_000
_NEVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken rule."""

    name: str
    noticed_by: tuple[str, ...]
    changes: tuple[tuple[Any, str, Any], ...]
    """Where, what, and the wrong one."""
    first_seed: int = FIRST_SEED
    """Where a test begins to search; later than this where that would take long."""
    is_long: bool = False
    """Found only after many seconds: `make whole` looks for it."""

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, wrong in self.changes:
                stack.enter_context(mock.patch.object(owner, name, wrong))
            yield


def _rules(**wrong: Any) -> Callable[..., RowRules]:
    return lambda **fields: RowRules(**{**fields, **wrong})


def _old_outputs(*args: Any, **fields: Any) -> MergeTask:
    return MergeTask(*args, **{**fields, "min_output_ms": 0})


def _nothing(*_: object, **__: object) -> tuple[()]:
    return ()


def _accept(*_: object) -> None:
    return None


_honest_judge = commit._judge
_remembered: dict[tuple[Ulid, ...], Manifest] = {}


def _judge_by_a_remembered_manifest(compactions: Sequence[AnyCompaction], manifest: Manifest) -> Any:
    """Commits on the manifest that the first look showed, whatever was published since."""
    ids = tuple(c.id for c in compactions)
    return _honest_judge(compactions, _remembered.setdefault(ids, manifest))


def _never(*_: object) -> int:
    return _NEVER_MS


def _own_time(self: SlateDataset) -> int:
    """Ends checkpoints by the coordinator's own clock."""
    return self._clock.now_ms()


_honest_checkpoint = Commit._new_checkpoint


def _pin_of_itself(self: Commit, manifest_id: int, *old: Any) -> Any:
    return _honest_checkpoint(self, manifest_id + 1, *old)


_honest_without_sources = transform._without_sources


def _without_marker(tree: Any, spec: Any) -> Any:
    return replace(_honest_without_sources(tree, spec), last_compacted_l0=tree.last_compacted_l0)


def _owned_by_anybody(ledger: AnyLedger, compaction_id: Ulid, worker_id: str) -> bool:
    compaction = ledger.get(compaction_id)
    return compaction is not None and compaction.state is CompactionState.RUNNING


def _finished_whosever_it_is(self: Worker, ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
    running = [c for c in ledger.compactions if c.state is CompactionState.RUNNING]
    return tuple(transitions.compacted(c, self.id, 0, ()) for c in running if c.id not in self._running)


_honest_reclaim = transitions.reclaim


def _forget_progress(ledger: AnyLedger, compaction_ids: Any) -> AnyLedger:
    ids = list(compaction_ids)
    ledger = _honest_reclaim(ledger, ids)
    for compaction_id in ids:
        ledger = ledger.update(compaction_id, lambda c: replace(c, progress=None))
    return ledger


_honest_recover = transitions.recover


def _revive(ledger: AnyLedger, epoch: int) -> AnyLedger:
    ledger = _honest_recover(ledger, epoch)
    revived = tuple(
        replace(c, state=CompactionState.SUBMITTED, outputs=(), worker=None) if c.state.is_terminal else c
        for c in ledger.compactions
    )
    return replace(ledger, compactions=revived)


def _recover_whatever_is_newer(ledger: AnyLedger, epoch: int) -> AnyLedger:
    return replace(_honest_recover(replace(ledger, epoch=0), epoch), epoch=epoch)


def _trim_all(ledger: AnyLedger, ended: Collection[Ulid] = ()) -> AnyLedger:
    return replace(ledger, compactions=ledger.active())


def _everybody_is_silent(self: SilenceWatch, ledger: AnyLedger, now_s: float) -> tuple[Ulid, ...]:
    return tuple(c.id for c in ledger.compactions if c.state is CompactionState.RUNNING)


_honest_claim = transitions.claim


def _claim_or_break(ledger: AnyLedger, *args: Any) -> AnyLedger:
    try:
        return _honest_claim(ledger, *args)
    except LostOwnership as error:
        raise IllegalTransition("it is gone") from error


_honest_cutoff = retention.sst_cutoff


def _cutoff_without_ledger(now_ms: int, min_age_ms: int, ledger: Any, latest: Manifest) -> Cutoff:
    cutoff = _honest_cutoff(now_ms, min_age_ms, ledger, latest)
    newest_l0s = [ms for tree in latest.trees() if (ms := retention._newest_l0_ms(tree)) is not None]
    return Cutoff(min([now_ms - min_age_ms, *newest_l0s]), "wrong") if cutoff.ms else cutoff


def _cutoff_without_l0(now_ms: int, min_age_ms: int, ledger: Any, latest: Manifest) -> Cutoff:
    if ledger is None or not ledger.compactions:
        return Cutoff(0, "nothing is known")
    return Cutoff(min([now_ms - min_age_ms, *(ulid_ms(c.id) for c in ledger.compactions)]), "wrong")


def _no_pins(self: Any, latest: Manifest) -> Mapping[int, Manifest]:
    return {}


def _proves_what_it_announces(self: Lease, epoch: int, *_: object) -> bool:
    return epoch in (self.taken, self.taking.epoch if self.taking is not None else None)


def _written_over_anything(self: ObjectLease, lease: Lease, etag: str | None) -> str:
    self._store.put(self.key, encode_lease(lease))
    return self.look() or ""


_honest_renew = Leadership.renew


def _renew_unasked(self: Leadership) -> None:
    if (self._clock.monotonic_s() - self._written_s) * 1000 >= RENEW_AFTER_MS:
        _honest_renew(self)


MUTANTS = (
    Mutant(
        "tombstones go although older runs lie below",
        (rules.ROWS,),
        ((prepare, "RowRules", _rules(is_last_run=True)),),
    ),
    Mutant(
        "versions that a snapshot needs go",
        (rules.ROWS,),
        ((prepare, "RowRules", _rules(retention_min_seq=_NEVER_MS)),),
    ),
    Mutant(
        "rows expire before their time",
        (rules.ROWS,),
        ((prepare, "RowRules", _rules(clock_tick_ms=_NEVER_MS)),),
    ),
    Mutant(
        "the older L0 SSTs may be left out",
        (rules.ROWS, rules.OWNERS),
        ((validate, "older_l0_left", _accept), (prepare, "older_l0_left", _accept)),
        first_seed=5_052,
    ),
    Mutant(
        "a commit does not look at the latest manifest",
        (rules.ROWS, rules.OWNERS, rules.KEPT, rules.EPOCHS),
        ((commit, "_judge", _judge_by_a_remembered_manifest),),
        first_seed=5_012,
    ),
    Mutant(
        "a commit does not move the marker",
        (rules.ONCE,),
        ((transform, "_without_sources", _without_marker),),
    ),
    Mutant(
        "boundaries are not looked at",
        (rules.NUMBERS, rules.DRAINED, rules.ROWS, rules.SOUND, rules.KEPT),
        ((VersionedFiles, "boundary", lambda self: 0),),
    ),
    Mutant(
        "who publishes does not look at the boundary",
        tuple(rules.ALL),
        ((VersionedFiles, "_check_counts", _accept),),
    ),
    Mutant(
        "who only looks never looks at the boundary",
        (rules.DRAINED, rules.CLEAN),
        ((versions, "MAX_TRUSTED_LOOKS", 1 << 30),),
    ),
    Mutant(
        "numbered files are deleted above the boundary",
        (rules.NUMBERS,),
        ((VersionedFiles, "advance_boundary", lambda self, to: to),),
    ),
    Mutant(
        "a worker does not look whose a compaction is",
        (rules.OWNERS,),
        ((transitions, "owns", _owned_by_anybody),),
    ),
    Mutant(
        "a coordinator commits for its worker what another one owns",
        (rules.ONCE,),
        ((Worker, "finished", _finished_whosever_it_is),),
        first_seed=5_025,
    ),
    Mutant(
        "a fenced coordinator goes on",
        (rules.EPOCHS,),
        ((transitions, "check_epoch", _accept), (commit, "_check_epoch", _accept)),
        first_seed=5_003,
    ),
    Mutant(
        "ids of compactions follow the clock",
        (rules.EPOCHS,),
        ((transitions, "next_id_ms", lambda ledger, now_ms, *_: now_ms),),
    ),
    Mutant(
        "outputs may be older than their compaction",
        (rules.EPOCHS,),
        ((prepare, "MergeTask", _old_outputs),),
        first_seed=5_095,
    ),
    Mutant(
        "workers are taken for dead at once",
        (rules.STATES,),
        ((SilenceWatch, "silent", _everybody_is_silent),),
    ),
    Mutant(
        "a reclaim forgets the progress",
        (rules.STATES,),
        ((transitions, "reclaim", _forget_progress),),
        first_seed=5_143,
    ),
    Mutant(
        "a new coordinator submits again what is finished",
        (rules.STATES,),
        ((transitions, "recover", _revive),),
    ),
    Mutant(
        "who takes up a ledger does not look whether a newer coordinator has",
        (rules.EPOCHS,),
        ((transitions, "recover", _recover_whatever_is_newer),),
        first_seed=5_002,
    ),
    Mutant(
        "no finished compaction is remembered",
        (rules.STATES,),
        ((transitions, "trim", _trim_all),),
    ),
    Mutant(
        "compactions are not compared with those under way",
        (rules.DISJOINT,),
        ((validate, "_conflicts", _nothing), (validate, "_parallel_l0", _nothing)),
        first_seed=5_092,
    ),
    Mutant(
        "everything counts as committed",
        (rules.ONCE,),
        ((commit, "is_committed", lambda *_: True),),
    ),
    Mutant(
        "a commit does not pin its inputs",
        (rules.KEPT,),
        ((commit, "with_checkpoint", lambda manifest, _: manifest),),
    ),
    Mutant(
        "a checkpoint ends by the coordinator's own clock",
        (rules.KEPT,),
        ((SlateDataset, "_latest_ms", _own_time),),
        first_seed=7_149,
    ),
    Mutant(
        "a collector takes its own clock for the store's",
        (rules.KEPT,),
        ((collection, "store_now_ms", _never),),
    ),
    Mutant(
        "a commit pins the version that it makes",
        (rules.KEPT,),
        ((Commit, "_new_checkpoint", _pin_of_itself),),
    ),
    Mutant(
        "garbage collection does not look at the ledger",
        (rules.KEPT,),
        ((retention, "sst_cutoff", _cutoff_without_ledger),),
    ),
    Mutant(
        "garbage collection does not look at the newest L0 SST",
        (rules.KEPT,),
        ((retention, "sst_cutoff", _cutoff_without_l0),),
        first_seed=5_249,
    ),
    Mutant(
        "garbage collection does not look at checkpoints",
        (rules.KEPT,),
        ((collection._Collection, "_pinned_manifests", _no_pins),),
    ),
    Mutant(
        "checkpoints go before their time",
        (rules.KEPT,),
        ((retention, "without_expired_checkpoints", lambda manifest, _: replace(manifest, checkpoints=())),),
    ),
    Mutant(
        "every epoch counts as Lithify's",
        (rules.UNASKED,),
        ((SlateDataset, "why_held", _accept),),
        first_seed=5_005,
    ),
    Mutant(
        "an epoch that was announced counts as taken",
        (rules.UNASKED,),
        ((Lease, "proves", _proves_what_it_announces),),
        first_seed=5_005,
    ),
    Mutant(
        "an epoch that was taken meanwhile is not looked at",
        (rules.UNASKED,),
        ((leadership, "_follows", lambda *_: True),),
        first_seed=5_005,
    ),
    Mutant(
        "a lease is written over whatever is there",
        (rules.LEASES,),
        ((ObjectLease, "write", _written_over_anything),),
        first_seed=5_009,
    ),
    Mutant(
        "a holder does not look at its lease",
        (rules.LEASES,),
        ((Leadership, "renew", _renew_unasked),),
        first_seed=5_138,
    ),
    Mutant(
        "who finds a lease does not watch it",
        (rules.LEASES,),
        ((Leadership, "_watch", lambda self, found: found),),
        first_seed=5_009,
    ),
    Mutant(
        "who watches a lease does not ask",
        (rules.LEASES,),
        ((Leadership, "_ask", lambda self, found: found),),
        first_seed=5_009,
    ),
    Mutant(
        "an announcement replaces any other",
        (rules.LEASES,),
        ((Leadership, "_may_be_written_over", lambda *_: True),),
        first_seed=5_293,
    ),
    Mutant(
        "a fenced coordinator renews its lease",
        (rules.LEASES,),
        ((Leadership, "_may_renew_over", lambda *_: True),),
        first_seed=5_072,
    ),
    Mutant(
        "nobody is ever silent", (rules.DRAINED,), ((SilenceWatch, "silent", _nothing),), first_seed=5_044
    ),
    Mutant(
        "heartbeats go on while nothing moves",
        (rules.DRAINED,),
        ((ProgressGate, "deserves_heartbeat", lambda *_: True),),
        first_seed=5_134,
    ),
    Mutant(
        "SSTs are never collected",
        (rules.CLEAN,),
        ((retention, "deletable_ssts", _nothing),),
    ),
    Mutant(
        "notes on compactions are never removed",
        (rules.CLEAN,),
        ((retention, "deletable_notes", _nothing), (ObjectJournal, "clear", _accept)),
    ),
    Mutant(
        "a lost race for a claim is an error",
        (rules.SOUND,),
        ((transitions, "claim", _claim_or_break),),
    ),
)
