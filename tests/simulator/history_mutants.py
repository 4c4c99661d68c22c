"""The protection of a table's history, broken on purpose: the world of its history has to notice every
mutant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID
from simulator.history import rules

from lithify.base.errors import StoreError
from lithify.coordination import holds, thresholds
from lithify.coordination.holds import ObjectHolds, Placed
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.maintenance import checkpoints, expire, expired_files, snapshot_pins
from lithify.datasets.iceberg.maintenance.checkpoints import StreamCheckpoint
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, Expiry
from lithify.datasets.iceberg.maintenance.expired_files import ExpiredFiles
from lithify.datasets.iceberg.maintenance.expiry_policy import TableRetention, retention_of
from lithify.datasets.iceberg.maintenance.pending import Pending, PendingFiles
from lithify.store.objects import ObjectStore
from lithify.watermarks.model import Hold, Threshold
from lithify.watermarks.rules import Collected, admits
from tests.simulator.mutants import Mutant

_honest_take = ObjectHolds.take


def _look_then_hold(self: ObjectHolds, *args: Any) -> Placed:
    before = self._thresholds.read()
    with mock.patch.object(self, "_thresholds", SimpleNamespace(read=lambda: before)):
        return _honest_take(self, *args)


_honest_renew = ObjectHolds.renew


def _renew_whatever(self: ObjectHolds, *args: Any) -> Placed:
    with mock.patch.object(self, "_thresholds", SimpleNamespace(read=lambda: None)):
        return _honest_renew(self, *args)


def _over_before_it_has_lapsed(hold: Hold, threshold: Threshold | None, now_ms: int) -> bool:
    return not admits(threshold, hold.position)


def _only_the_table(table: Table) -> Any:
    return (AssertTableUUID(uuid=table.metadata.table_uuid),)


def _planned(store: ObjectStore, folder: str) -> tuple[int | None, int | None]:
    """What was planned counts as committed."""
    metas = list(store.list(folder.replace("/commits", "/offsets")))
    return max(((int(m.key.rpartition("/")[2]), m.last_modified_ms) for m in metas), default=(None, None))


def _due_at_once(entry: PendingFiles, grace_ms: int, now_ms: int) -> bool:
    return entry.since_ms is not None and not entry.blocked


class _NothingIsReached:
    def __init__(self, location: str) -> None:
        self.names = SimpleNamespace(has=_never, add=_nothing)

    def add(self, table: Table) -> None:
        pass


_honest_confirm = Pending.confirm


def _expired_as_written(self: Pending, *args: Any) -> tuple[PendingFiles, ...]:
    found = _honest_confirm(self, *args)
    return tuple(entry if entry.blocked else replace(entry, since_ms=entry.written_ms) for entry in found)


def _as_low_as_is_needed(
    published: Threshold | None, low_watermark: int | None, collected: Collected
) -> Threshold | None:
    if collected.reason is not None or low_watermark is None:
        return published
    least = collected.least
    return Threshold(low_watermark if least is None else min(low_watermark, least.position), least)


def _publish_whatever(
    self: ThresholdFiles, change: Callable[[Threshold | None], Threshold | None]
) -> Threshold | None:
    def changed(version: Any) -> bytes | None:
        now = None if version is None else self.files.decode(version, thresholds.decode)
        new = change(now)
        return None if new is None or new == now else thresholds.encode(new)

    version = self.files.update(changed, self._clock, self._rng)
    return None if version is None else self.files.decode(version, thresholds.decode)


def _nothing_is_missing(*args: Any) -> str:
    return ""


_honest_try, _honest_look = Expirer._try, Expirer._look_twice
_looks: dict[Expirer, Any] = {}


def _try_anew(self: Expirer, *args: Any) -> Any:
    _looks.pop(self, None)
    return _honest_try(self, *args)


def _look_once(self: Expirer, options: ExpireOptions) -> Any:
    """What was collected before the watermark was published is what counts after it."""
    found = _looks.pop(self, None)
    if found is None:
        found = _looks[self] = _honest_look(self, options)
    return found


def _by_its_own_clock(self: Expirer, options: ExpireOptions) -> int:
    return self._clock.now_ms()


_honest_expire = Expirer._expire


def _drop_in_doubt(
    self: Expirer, plan: Any, going: frozenset[int], done: Expiry, grace_ms: int
) -> tuple[Any, str]:
    try:
        return _honest_expire(self, plan, going, done, grace_ms)
    except StoreError:
        for entry in self._pending.read():
            if set(entry.snapshots) == going:
                self._pending.drop(entry)
        raise


_honest_carry_out = ExpiredFiles._carry_out


def _drop_first(self: ExpiredFiles, entry: PendingFiles, *args: Any) -> None:
    files = list(self._pending.paths(entry))
    self._pending.drop(entry)
    with mock.patch.object(self._pending, "paths", side_effect=lambda _: iter(files)):
        _honest_carry_out(self, entry, *args)


def _keep_one(properties: Mapping[str, str], now_ms: int, *args: Any) -> TableRetention:
    return replace(retention_of(properties, now_ms, *args), min_kept=1)


def _nothing(*_: object, **__: object) -> Any:
    return {}


def _never(*_: object, **__: object) -> bool:
    return False


def _no_reason(table: Table, entry: PendingFiles) -> str:
    return ""


def _themselves(metadata: Any, snapshots: Set[int]) -> frozenset[int]:
    return frozenset(snapshots)


MUTANTS = (
    Mutant(
        "a hold is put after the watermark was read",
        (rules.HOLDS,),
        ((ObjectHolds, "take", _look_then_hold),),
        first_seed=5_180,
    ),
    Mutant(
        "holds are collected before the watermark is published",
        (rules.HOLDS, rules.READERS, rules.COMPACTED, rules.REFS),
        ((Expirer, "_look_twice", _look_once), (Expirer, "_try", _try_anew)),
        first_seed=5_032,
    ),
    Mutant(
        "a lapsed hold is renewed whatever the watermark says",
        (rules.HOLDS,),
        ((ObjectHolds, "renew", _renew_whatever),),
        first_seed=5_014,
    ),
    Mutant(
        "a hold is renewed as it was put, though it has not lapsed",
        (rules.RENEWED,),
        ((holds, "_follows", _never),),
    ),
    Mutant(
        "a hold is removed before it has lapsed",
        (rules.HOLDS, rules.RENEWED),
        ((holds, "is_over", _over_before_it_has_lapsed),),
        first_seed=5_018,
    ),
    Mutant(
        "a hold never lapses",
        (rules.ENDS,),
        ((Hold, "has_lapsed", _never),),
    ),
    Mutant(
        "a run tells the time by its own clock",
        (rules.HOLDS, rules.POLICY, rules.GRACE, rules.REFS),
        ((Expirer, "_now_ms", _by_its_own_clock),),
        first_seed=5_002,
    ),
    Mutant(
        "a commit asserts no refs",
        (rules.REFS, rules.SURVIVES),
        ((expire, "requirements_of", _only_the_table),),
        first_seed=5_004,
    ),
    Mutant(
        "a catalog that could check everything is asked for refs only",
        (rules.REFS, rules.LEFT, rules.SURVIVES),
        ((expire, "_checks_here", _never),),
        first_seed=5_004,
    ),
    Mutant(
        "nobody looks for branches and tags that came between",
        (rules.REFS,),
        ((expired_files, "lost_between", _no_reason),),
        first_seed=5_040,
    ),
    Mutant(
        "of what lost its branch or tag only that stays which nothing else named",
        (rules.REFS,),
        ((ExpiredFiles, "_keep_whole", _nothing),),
        first_seed=5_040,
    ),
    Mutant(
        "what a reader has only planned counts as committed",
        (rules.READERS, rules.ENDS),
        ((checkpoints, "_committed", _planned),),
        first_seed=5_001,
    ),
    Mutant(
        "a reader never counts as begun",
        (rules.ENDS,),
        ((StreamCheckpoint, "is_begun", False),),
    ),
    Mutant(
        "compactions of ours hold nothing",
        (rules.COMPACTED,),
        ((snapshot_pins, "_active", _nothing),),
        first_seed=5_030,
    ),
    Mutant(
        "there is no grace period",
        (rules.GRACE,),
        ((expired_files, "_is_due", _due_at_once),),
    ),
    Mutant(
        "what was written down counts as expired",
        (rules.GRACE, rules.LEFT),
        ((Pending, "confirm", _expired_as_written),),
        first_seed=5_115,
    ),
    Mutant(
        "what the table names is not looked at again before files are deleted",
        (rules.NAMED, rules.REFS, rules.GRACE, rules.ENDS),
        ((expired_files, "Reached", _NothingIsReached),),
        first_seed=5_040,
    ),
    Mutant(
        "what was written down is dropped when the answer to the commit is lost",
        (rules.LEFT,),
        ((Expirer, "_expire", _drop_in_doubt),),
        first_seed=5_037,
    ),
    Mutant(
        "what was written down is dropped before its files are deleted",
        (rules.LEFT, rules.REFS),
        ((ExpiredFiles, "_carry_out", _drop_first),),
    ),
    Mutant(
        "the watermark goes down where somebody needs more",
        (rules.WATERMARK,),
        ((expire, "next_threshold", _as_low_as_is_needed), (ThresholdFiles, "publish", _publish_whatever)),
    ),
    Mutant(
        "a run wants to publish a lower watermark",
        (rules.SURVIVES,),
        ((expire, "next_threshold", _as_low_as_is_needed),),
    ),
    Mutant(
        "the table keeps one snapshot, however many it wants",
        (rules.POLICY,),
        ((expire, "retention_of", _keep_one),),
    ),
    Mutant(
        "who holds a snapshot does not hold what was made of it",
        (rules.HOLDS, rules.READERS),
        ((expire, "and_descendants", _themselves),),
        first_seed=5_115,
    ),
    Mutant(
        "what the folder does not have is not needed",
        (rules.HOLDS, rules.READERS),
        ((expire, "missing", _nothing_is_missing),),
        first_seed=5_053,
    ),
)
