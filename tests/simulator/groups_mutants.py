"""The rules of a group, broken on purpose: the world of groups has to notice every mutant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from simulator.groups import copies, log, rules
from simulator.groups.log import Log, Record, Round

from lithify.coordination import groups as files
from lithify.coordination import membership
from lithify.coordination.groups import GroupFiles
from lithify.watermarks import groups
from lithify.watermarks.groups import NO_MARKS, GroupRole, GroupState, Joined, Marks, Track
from lithify.watermarks.model import GroupMember, Hold, Mark, Needed, Threshold
from lithify.watermarks.rules import Collected
from tests.simulator.mutants import Mutant
from tests.watermarks.marks import marks_of

SHOWN = (rules.DELETED, rules.ABORTED, rules.COMMITTED, rules.STUCK, rules.READERS, rules.FLOOR)
"""What copies and readers have is wrong."""


def _furthest(
    required: Collection[GroupMember], marks: Iterable[Mark], holds: Iterable[Hold], now_ms: int
) -> Collected:
    return Collected(max((Needed(m.position or 0, m.member.name) for m in marks), key=lambda n: n.position))


def _who_has_said_something(members: Iterable[Joined], track: Track) -> list[Joined]:
    return [one for one in members if one.role in groups.REQUIRED[track] and one.marks]


def _as_published(group: GroupState, member: GroupMember, partition: int) -> Marks:
    return NO_MARKS if group.find(member) is None else group.thresholds_of(partition)


_honest_bound = groups.bound


def _clean_for_both(group: GroupState, member: GroupMember, partition: int) -> Marks:
    clean = _honest_bound(group, member, partition).clean
    return Marks(clean, clean)


_honest_cleaned = log.cleaned


def _all_is_clean(before: Log, round_: Round) -> Log:
    return replace(_honest_cleaned(before, round_), marks=Marks(before.end, before.end))


def _resolved_though_a_marker_is_missing(before: Log, round_: Round) -> Log:
    after = _honest_cleaned(before, round_)
    return replace(after, marks=Marks(after.marks.clean, before.end))


_honest_published = groups.published


def _for_the_members_it_knew(self: GroupFiles, epoch: int) -> GroupState:
    """Those when its epoch began."""
    known = vars(self).setdefault("known", {}).setdefault(epoch, self._known(epoch))
    members = [one.member for one in known.members.values()]
    reports = {member: self.said(member) for member in members}

    def change(group: GroupState) -> GroupState:
        files._check_epoch(group, epoch)
        old = _honest_published(replace(group, members=known.members), reports, self._clock.now_ms())
        return replace(_honest_published(group, reports, self._clock.now_ms()), thresholds=old.thresholds)

    return self._update(change)


def _as_low_as_the_least(published: Threshold | None, low: int | None, collected: Collected) -> Threshold:
    return Threshold(low or 0, collected.least)


def _at_once(record: Record, round_: Round, bound: int, *, is_past: bool) -> Record | None:
    return None if record.offset < bound else record


def _anything(*_: object) -> bool:
    return True


def _nothing(*_: object) -> None:
    return None


def _the_last(before: Mapping[int, Any], now: Mapping[int, Any]) -> dict[int, Any]:
    return dict(now)


def _unequal(one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    return bool(one and other) and one != other


def _expecting_nobody(group: GroupState, names: Iterable[str]) -> GroupState:
    return group


def _stays(group: GroupState, name: str, now_ms: int) -> GroupState:
    return group


def changed(*changes: tuple[Any, str, Callable[..., Any] | Mapping[Any, Any]]) -> Any:
    return changes


MUTANTS = (
    Mutant(
        "who is slow is left out of the minimum",
        (rules.THRESHOLDS,),
        changed((groups, "collect", _furthest)),
    ),
    Mutant(
        "who has said nothing yet is left out of the minimum",
        (rules.THRESHOLDS,),
        changed((groups, "_required", _who_has_said_something)),
    ),
    Mutant(
        "whoever is compacted first decides",
        (rules.EXPECTED,),
        changed((files, "expecting", _expecting_nobody), (files, "is_expected", _anything)),
    ),
    Mutant(
        "a copy that lags counts as one with other offsets",
        (rules.OFFSETS,),
        changed((groups, "differ", _unequal)),
    ),
    Mutant(
        "readers are left out of the minimum",
        (rules.THRESHOLDS, rules.READERS),
        changed((groups, "REQUIRED", dict.fromkeys(Track, frozenset({GroupRole.COPY})))),
    ),
    Mutant("a copy removes by its own marks", SHOWN, changed((copies, "bound", marks_of)), first_seed=5_010),
    Mutant(
        "a copy believes a threshold as it is published",
        SHOWN,
        changed((copies, "bound", _as_published)),
        first_seed=5_048,
    ),
    Mutant(
        "markers go when they are clean", SHOWN, changed((copies, "bound", _clean_for_both)), first_seed=5_143
    ),
    Mutant("a mark reaches past what the round did", SHOWN, changed((copies, "cleaned", _all_is_clean))),
    Mutant(
        "who was restored goes on as who it was",
        (*SHOWN, rules.CONVERGES),
        changed((membership, "lost", _nothing)),
        first_seed=5_010,
    ),
    Mutant(
        "who comes too late joins with what it has",
        SHOWN,
        changed((files, "passed", _nothing)),
        first_seed=5_001,
    ),
    Mutant(
        "a copy copies from whatever copy there is",
        SHOWN,
        changed((copies, "is_source", _anything)),
        first_seed=5_100,
    ),
    Mutant(
        "what was copied or read is kept though the member was removed",
        SHOWN,
        changed((membership.Membership, "is_still", _anything)),
        first_seed=5_126,
    ),
    Mutant(
        "a leader publishes for the members that it knew",
        (rules.THRESHOLDS, rules.SURVIVES),
        changed((GroupFiles, "publish", _for_the_members_it_knew)),
        first_seed=5_014,
    ),
    Mutant(
        "a leader of an old epoch publishes", (rules.LEADERS,), changed((files, "_check_epoch", _nothing))
    ),
    Mutant(
        "thresholds go down", (rules.SURVIVES,), changed((groups, "next_threshold", _as_low_as_the_least))
    ),
    Mutant("what was said is said over", (rules.MARKS,), changed((files, "said", _the_last))),
    Mutant(
        "a copy counts as resolved though it lacks a marker",
        (*SHOWN, rules.CONVERGES),
        changed((copies, "cleaned", _resolved_though_a_marker_is_missing)),
    ),
    Mutant(
        "a copy that had its round has no other one",
        (rules.CONVERGES,),
        changed((copies, "is_round_due", _nothing)),
    ),
    Mutant("a member that was removed stays", (rules.CONVERGES,), changed((files, "left", _stays))),
    Mutant(
        "the retention is not waited for",
        (rules.FLOOR,),
        changed((log, "_stays", _at_once)),
        first_seed=5_332,
    ),
)
