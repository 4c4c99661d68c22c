"""Copies: they join, copy from each other, and are compacted, each by processes of its own.

What a copy does here is what whoever keeps one has to do. A process of it enters the group when it begins
(`coordination.membership`). The copier copies from members only, as they are known, and only from data as
clean as its own marks where it relies on them; then it looks whether it is still a member, and only then
appends. The compactor says what is so of the committed copy, reads the group, and cleans with the bounds that
follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lithify.base.errors import Refused
from lithify.coordination.membership import EntryStep, Kept, Membership, MemberStateStore
from lithify.watermarks.groups import GroupRole, Marks, bound, is_source
from lithify.watermarks.model import GroupMember
from simulator.groups.log import Log, Round, cleaned, extended, fetched, reported, stable_end
from simulator.groups.parts import now_and_then
from simulator.groups.world import HOME, PARTITION, Process

_MAX_FETCHED = 5
_MAX_WORK_MS = 2_000
_SLOW_SHARE = 0.1
_MAX_SLOW_MS = 15_000


def run_copier(process: Process, name: str) -> None:
    """Copy what is new, again and again."""
    opened: list[GroupMember] = []
    now_and_then(process, process.world.scenario.copy_pause_ms, lambda: _copy(process, name, opened))


def run_compactor(process: Process, name: str) -> None:
    """Say how far the copy is, and compact it, again and again."""
    now_and_then(process, process.world.scenario.compact_pause_ms, lambda: _compact(process, name))


class LogMemberState:
    """A copy, as far as a membership changes it."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name

    def read(self) -> Kept:
        log = self._process.read_log(self._name)
        return Kept(log.incarnation, {PARTITION: log.standing})

    def renew(self, before: Kept, incarnation: str) -> bool:
        return self._change(
            "is another incarnation", before, lambda log: replace(log, incarnation=incarnation)
        )

    def empty(self, before: Kept, incarnation: str) -> bool:
        if self._name == HOME:
            raise Refused("producers write here: it reads how far it is, and joins again")
        return self._change("is emptied", before, lambda log: Log(incarnation=incarnation))

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        return self._change("adopts", before, lambda log: replace(log, marks=marks[PARTITION]))

    def _change(self, what: str, before: Kept, change: Callable[[Log], Log]) -> bool:
        def changed(log: Log) -> Log | None:
            now = Kept(log.incarnation, {PARTITION: log.standing})
            return change(log) if before.is_in(now) else None

        return self._process.change_log(self._name, what, changed) is not None


def entered(process: Process, name: str, role: GroupRole, state: MemberStateStore) -> GroupMember | None:
    """The member, if it may go on; otherwise the next step towards that is done."""
    if name not in process.world.wanted:
        return None
    entry, member = Membership(process.files, name, role, state).enter()
    if entry is EntryStep.MEMBER:
        return member
    process.count(f"event: {role} {entry}")
    return None


def _copy(process: Process, name: str, opened: list[GroupMember]) -> None:
    log = process.read_log(name)
    member = GroupMember(name, log.incarnation)
    if opened != [member]:
        found = _entered(process, name)
        opened[:] = [] if found is None else [found]
        return
    group = process.files.read()
    sources = [one for one in group.members.values() if one.role is GroupRole.COPY and one.member != member]
    if not sources:
        return
    chosen = process.rng.choice(sources).member
    if not process.world.is_calm and process.rng.random() < _SLOW_SHARE:
        process.sleep_ms(process.rng.randint(1, _MAX_SLOW_MS))
    source = process.read_log(chosen.name)
    if source.incarnation != chosen.incarnation or source.end <= log.end:
        return
    if not is_source(log.marks, log.end, source.marks):
        process.count("event: a copy is no source")
        return
    records, end = fetched(source, log.end, process.rng.randint(1, _MAX_FETCHED), log.marks.resolved)
    if not is_still_member(process, name, member):
        process.count("event: copied in vain")
        opened.clear()
        return
    copied = process.change_log(
        name,
        f"has copied from {chosen.name}",
        lambda now: (
            extended(now, records, end) if (now.incarnation, now.end) == (log.incarnation, log.end) else None
        ),
    )
    if copied is not None:
        process.files.say(member, {PARTITION: reported(copied)})


def is_round_due(log: Log, limits: Marks, now_ms: int) -> bool:
    """Whether a copy that a round has not changed can lose something that it kept then."""
    for record in log.records:
        limit = limits.clean if record.is_row else limits.resolved
        is_done = record.horizon_ms is None or record.horizon_ms <= now_ms
        if is_done and record.offset < limit:
            return True
    return False


def is_still_member(process: Process, name: str, member: GroupMember) -> bool:
    return Membership(process.files, name, GroupRole.COPY, LogMemberState(process, name)).is_still(member)


def _entered(process: Process, name: str) -> GroupMember | None:
    return entered(process, name, GroupRole.COPY, LogMemberState(process, name))


def _compact(process: Process, name: str) -> None:
    member = _entered(process, name)
    if member is None:
        return
    rng, world = process.rng, process.world
    log = process.read_log(name)
    if log.incarnation != member.incarnation:
        return
    process.files.say(member, {PARTITION: reported(log)})
    limits = bound(process.files.read(), member, PARTITION)
    base = process.read_log(name)
    if base.incarnation != log.incarnation:
        return
    if base == world.compacted.get(name) and not is_round_due(base, limits, world.now_ms):
        process.count("event: no round is due")
        return
    is_whole = world.is_calm or rng.random() < world.scenario.whole_rounds
    cleans_only, resolves_only = (0.0, 0.0) if is_whole else world.scenario.one_track
    kind = rng.random()
    round_ = Round(
        upto=base.end if is_whole else rng.randint(0, base.end),
        bound=limits,
        now_ms=0,
        retention_ms=world.scenario.retention_ms,
        cleans=kind < 1 - resolves_only,
        resolves=kind >= cleans_only,
        keeps_transactions=world.scenario.keeps_transactions,
    )
    if not world.is_calm:
        process.sleep_ms(rng.randint(1, _MAX_WORK_MS))

    def commit(now: Log) -> Log | None:
        """What came meanwhile is not touched. The retention counts from here."""
        if (now.incarnation, now.rounds) != (base.incarnation, base.rounds):
            return None
        done = cleaned(base, replace(round_, now_ms=world.now_ms))
        if (done.records, done.marks) == (base.records, base.marks):
            if is_whole:
                world.compacted[name] = base
            return None
        return extended(done, tuple(r for r in now.records if r.offset >= base.end), now.end)

    if process.change_log(name, f"is compacted to {min(round_.upto, stable_end(base))}", commit):
        process.count("event: round")
        if name == HOME:
            process.count("event: round at home")
