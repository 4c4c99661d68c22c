"""A topic or partition in folders of segments, and its compacted output elsewhere.

    <source>/orders-0/…                        read only
    <output>/<id of a compaction>/orders-0/…   a compacted partition, complete once the state names it
    <output>/_lithify/                         ledger, lease and sidecar; below it
        state/…                                the progress of each partition (`state.py`)
        index/orders-0/…                       indexes of segments, for all rounds (`kept_indexes.py`)
        work/<id>/…                            results of a step for the next one

A round has three steps, each a compaction: index, match, rewrite (`tasks.py`). A step is refused, before it
runs and before it is published, if the source's listing differs from the planned one. Outputs are named by
the step's id, which the ledger has first; so a folder whose id is in neither ledger nor state is garbage.

A topic in a broker's bucket is compacted in place instead: rewriting leaves merged objects in `work`, and a
fourth step publishes them (`publishing.py`). Once rewriting is published, the round must be completed,
whatever is listed, since Lithify's own writes change the folder. Only if the topic turns out to be a
different one, the round is dropped and planned anew.

A log may belong to a group of copies, which limits the removal of tombstones and markers (`members.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from lithify.base.backlog import Backlog
from lithify.base.errors import Refused
from lithify.base.ids import Ulid, ulid_ms
from lithify.config.durations import FOREVER, to_milliseconds
from lithify.datasets.kafka.buckets.publishing import PUBLICATION_REPORTS, PublicationReport
from lithify.datasets.kafka.cleaning.cleaning_params import Terms
from lithify.datasets.kafka.cleaning.cleaning_tasks import LogSteps
from lithify.datasets.kafka.cleaning.partitioned_arrays import first_element
from lithify.datasets.kafka.cleaning.tasks import OFFSETS, Output, get_kept, sample_of, slice_keys
from lithify.datasets.kafka.layouts.contract import PartitionFolder
from lithify.datasets.kafka.layouts.segments import number_of, topic_of
from lithify.datasets.kafka.layouts.topic_settings import OwnSettings
from lithify.datasets.kafka.members import lowest, waits
from lithify.datasets.kafka.model import LogCompaction, LogLedger, LogSnapshot, LogSpec
from lithify.datasets.kafka.planner import LogObject, LogPolicy, Partition, plan
from lithify.datasets.kafka.state import NOTHING_KEPT, LogState, PartitionRound, Step
from lithify.planning.admission import Capacity
from lithify.protocol.lease import Permit
from lithify.protocol.model import Ledger
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner, Proposal, TaskIdentity
from lithify.store.versions import Version, VersionedFiles
from lithify.watermarks.groups import Marks, PartitionStanding

_LATER = 0.9
"""Priority of a begun round's next step: its runs take space until the round is complete."""
_SELDOM = 0.1
"""Priority of a round that only removes tombstones."""


class LogDataset(LogSteps):
    takes_cuts: ClassVar = False
    """Whether steps cover only a part of the listing (`LogSpec.cut`)."""

    # Leadership

    @property
    def refusal(self) -> str | None:
        """Why the log can be planned and shown, but not compacted; `None` if it can."""
        return self._layout.refusal

    def epoch(self) -> int:
        """Return the ledger's epoch. Raise `Refused` if the log cannot be compacted, or its name in the group
        belongs to another log."""
        if self.refusal is not None:
            raise Refused(f"{self.url}: {self.refusal}")
        if self.member is not None:
            self.member.check(self.member.read(), self._source_url)
        return super().epoch()

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        self.epoch()  # raises if there is no log, or it cannot be compacted
        self._say_source()
        return super().take_epoch(permit)

    def _say_source(self) -> None:
        """Record the source's URL in the state before any other output is written."""

        def claim(version: Version | None) -> bytes | None:
            state = self._decoded(version)
            return None if state.source else self._claimed(state).encode()

        self.states.update(claim, self._clock, self._rng)

    def _claimed(self, state: LogState) -> LogState:
        return replace(state, source=self._source_url)

    # Reading

    def _read_snapshot(self) -> LogSnapshot:
        partitions = self.partitions()
        topics = {topic_of(name) for name in partitions}
        if self.member is not None and len(topics) > 1:
            raise Refused(
                f"{self.url}: has {len(topics)} topics, but a group has copies of one; name a topic"
            )
        self._layout.check_output(self.store, self.output_root)
        state = self.state()
        group = None if self.member is None else self.member.read()
        return LogSnapshot(partitions, state, group, refusal=self.refusal)

    def partitions(self) -> Mapping[str, PartitionFolder]:
        """List all partitions.

        Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
        """
        return self._layout.partitions()

    @property
    def source_url(self) -> str:
        return self._source_url

    def state(self) -> LogState:
        """Return the latest state; raise `Refused` if it belongs to another log."""
        return self._decoded(self.states.latest())

    def _decoded(self, version: Version | None) -> LogState:
        if version is None:
            return LogState()
        state = self.states.decode(version, LogState.decode)
        if state.source not in ("", self._source_url):
            raise Refused(
                f"{self.url}: {self.output_root} contains the output of {state.source}; name another output"
            )
        return state

    @property
    def ledger_versions(self) -> VersionedFiles:
        return self._ledger.files

    def backlog(self, snapshot: LogSnapshot, now_ms: int) -> tuple[Backlog, ...]:
        return ()  # no writer waits for compactions

    def identify(self, spec: LogSpec) -> TaskIdentity:
        return TaskIdentity(
            key=f"{spec.partition} {spec.step}",
            unit=spec.partition,
            inputs=frozenset({spec.partition}),
            conflict_scope=frozenset({f"{spec.partition} {spec.fingerprint} {spec.step}"}),
        )

    def capacity(self, snapshot: LogSnapshot) -> Capacity:
        return Capacity()

    def newest_ms(self, snapshot: LogSnapshot) -> int:
        return self._now_ms()

    def new_id_ms(self, snapshot: LogSnapshot, now_ms: int) -> int:
        """Return the store's time. The time in a round's ids decides which delete horizons have passed and
        which are set, so it must not depend on this machine's clock."""
        return self.dated_ms()

    def cost_bytes(self, spec: LogSpec, snapshot: LogSnapshot) -> int:
        found = snapshot.partitions.get(spec.partition)
        if found is None or (found.fingerprint != spec.fingerprint and spec.step is not Step.PUBLISH):
            return 0
        return max(1, found.size_bytes)

    def priority(self, spec: LogSpec, snapshot: LogSnapshot) -> float:
        if not self.cost_bytes(spec, snapshot):
            return 0.0
        return _LATER if spec.done else 0.5

    def output_name(self, output: Output) -> str:
        return output.key

    def output_bytes(self, output: Output) -> int:
        return output.size_bytes

    # Planning

    def policy(self, folder: PartitionFolder | None = None, *, full: bool = False) -> LogPolicy:
        """Return when a partition is worth compacting: by the topic's own settings, else by Lithify's. With
        `full`, any change is enough."""
        settings, own = self._settings, _own(folder)
        lag = settings.max_compaction_lag
        default_lag_ms = None if lag == FOREVER else to_milliseconds(lag)
        ratio = settings.min_cleanable_dirty_ratio if own.dirty_ratio is None else own.dirty_ratio
        return LogPolicy(
            min_cleanable_dirty_ratio=0.0 if full else ratio,
            min_compaction_lag_ms=self._min_lag_ms(own),
            max_compaction_lag_ms=default_lag_ms if own.max_lag_ms is None else own.max_lag_ms,
            target_object_bytes=self._layout.target_bytes or self._segment_bytes(own),
            newest_object=self._takes_newest(folder),
        )

    def _segment_bytes(self, own: OwnSettings) -> int:
        return int(self._settings.segment_bytes) if own.segment_bytes is None else own.segment_bytes

    def _takes_newest(self, folder: PartitionFolder | None) -> bool:
        return self._settings.newest_segment and (folder is None or folder.topic is None)

    def _min_lag_ms(self, own: OwnSettings) -> int:
        return (
            to_milliseconds(self._settings.min_compaction_lag) if own.min_lag_ms is None else own.min_lag_ms
        )

    def _delete_retention_ms(self, own: OwnSettings) -> int:
        if own.delete_retention_ms is not None:
            return own.delete_retention_ms
        return to_milliseconds(self._settings.delete_retention)

    def terms(self, folder: PartitionFolder | None = None, marks: Marks | None = None) -> Terms:
        """Return the terms of a step planned now; in a group, `marks` limit removals."""
        settings, own = self._settings, _own(folder)
        removed = {} if marks is None else {"tombstones_below": marks.clean, "markers_below": marks.resolved}
        return Terms(
            min_compaction_lag_ms=self._min_lag_ms(own),
            delete_retention_ms=self._delete_retention_ms(own),
            producer_id_expiration_ms=to_milliseconds(settings.producer_id_expiration),
            segment_bytes=self._segment_bytes(own),
            keep_unkeyed=bool(settings.keep_unkeyed) or (folder is not None and folder.topic is not None),
            quiet_ms=to_milliseconds(settings.quiet_period),
            newest_segment=self._takes_newest(folder),
            **removed,
        )

    def _bounds(self, snapshot: LogSnapshot, name: str) -> Marks | None:
        if self.member is None or snapshot.group is None:
            return None
        return self.member.bounds(snapshot.group, snapshot.state, number_of(name))

    def _waits(self, snapshot: LogSnapshot, name: str) -> list[str]:
        """Return in words which records of a partition must not be removed yet, and why."""
        if self.member is None or snapshot.group is None:
            return []
        if not self.member.is_in(snapshot.group, snapshot.state):
            return [f"{self.member.name} is not a member of the group, so tombstones and markers are kept"]
        return waits(snapshot.group, number_of(name))

    def planner(self, *, full: bool = False) -> Planner:
        """Return the planner of one run of a command."""

        def plan_asked(
            snapshot: LogSnapshot, ledger: LogLedger, held: Held = NOTHING_HELD, /
        ) -> Plan[LogSpec]:
            return self.propose(snapshot, ledger, held, full)

        return plan_asked

    def propose(
        self,
        snapshot: LogSnapshot,
        ledger: LogLedger,
        held: Held = NOTHING_HELD,
        full: bool = False,
    ) -> Plan[LogSpec]:
        """Propose the next step of each begun round, and the first step of each round that is worth it."""
        busy = {compaction.spec.partition for compaction in ledger.active()}
        proposals: list[Proposal[LogSpec]] = []
        notes = []
        for name, folder in snapshot.partitions.items():
            if name in held:
                notes.append(f"{name}: {held[name]}")
            elif folder.refusal:
                notes.append(f"{name}: {folder.refusal}")
            elif name in busy:
                notes.append(f"{name}: is being compacted")
            elif (found := snapshot.round(name)) is None or self._is_due_again(snapshot, found, name):
                verdict = self._judge(snapshot, name, folder, full=full)
                proposals += verdict if isinstance(verdict, list) else []
                notes += [verdict] if isinstance(verdict, str) else []
            elif found.next_step is None:
                notes.append(f"{name}: {_why_done(found)}")
            elif found.unkeyed and self._settings.keep_unkeyed is None:
                notes.append(f"{name}: {_why_unkeyed(found)}")
            else:
                terms = self.terms(folder, self._bounds(snapshot, name))
                spec = LogSpec(name, found.fingerprint, found.done, terms)
                cost_bytes, step = self.cost_bytes(spec, snapshot), len(found.done) + 1
                reason = f"{name}: step {step} of {len(found.steps)} ({found.next_step})"
                if found.next_step is Step.REWRITE:
                    reason = "; ".join((reason, *self._waits(snapshot, name)))
                proposals.append(Proposal(spec, _LATER, cost_bytes, reason))
        if snapshot.refusal is not None and not any(one.refusal for one in snapshot.partitions.values()):
            notes.append(f"{self.url}: {snapshot.refusal}")
        ordered = sorted(proposals, key=lambda proposal: -proposal.priority)
        return Plan(tuple(ordered), tuple(notes))

    def _judge(
        self, snapshot: LogSnapshot, name: str, folder: PartitionFolder, *, full: bool
    ) -> list[Proposal[LogSpec]] | str:
        """Return a proposal of a new round for the partition, or the reason against it."""
        segments, before = folder.segments, snapshot.state.rounds.get(name)
        if before is not None and before.topic_id != folder.topic_id:
            before = None
        ends = [*(segment.base_offset for segment in segments[1:]), segments[-1].base_offset + 1]
        objects = [
            LogObject(segment.base_offset, end, segment.size_bytes, -1, segment.modified_ms)
            for segment, end in zip(segments, ends, strict=True)
        ]
        clean_below = 0 if before is None or full else before.bound
        known = [Partition(name, objects, clean_below, folder.bound, folder.committed)]
        found = plan(known, self.policy(folder, full=full), self._now_ms())
        spec = LogSpec(name, folder.fingerprint, (), self.terms(folder))
        cost_bytes = self.cost_bytes(spec, snapshot)
        if found.rounds:
            (worth,) = found.rounds
            return [Proposal(spec, worth.priority, cost_bytes, worth.reason)]
        due = self._tombstones_due(before, folder)
        if due:
            reason = f"{name}: {due:,} tombstones have been kept for delete.retention.ms"
            return [Proposal(spec, _SELDOM, cost_bytes, reason)]
        if before is not None and self._is_released(snapshot, before, name):
            first = min(before.kept_tombstone, before.kept_marker)
            reason = (
                f"{name}: the group lets tombstones or markers be removed that it kept, from offset "
                f"{first:,} on"
            )
            return [Proposal(spec, _SELDOM, cost_bytes, reason)]
        return found.notes[0]

    def _tombstones_due(self, before: PartitionRound | None, folder: PartitionFolder) -> int:
        """Return the number of tombstones that the last round met, if their delete horizon has passed since;
        else 0."""
        if before is None or not before.is_whole:
            return 0
        horizon_ms = ulid_ms(before.done[-1]) + self._delete_retention_ms(_own(folder))
        return before.tombstones if self._now_ms() >= horizon_ms else 0

    def _is_released(self, snapshot: LogSnapshot, found: PartitionRound, name: str) -> bool:
        """Return whether the group's bounds have passed a tombstone or marker that the last round kept only
        because of them."""
        bounds = self._bounds(snapshot, name) or Marks(NOTHING_KEPT, NOTHING_KEPT)
        is_past = bounds.clean > found.kept_tombstone or bounds.resolved > found.kept_marker
        return found.is_whole and is_past

    def _is_due_again(self, snapshot: LogSnapshot, found: PartitionRound, name: str) -> bool:
        """Return whether an unchanged partition can lose tombstones or markers: those that it kept for other
        copies, and, if it was compacted in place, those whose delete horizon has passed since. Elsewhere a
        round does not change the horizons that the next one reads."""
        folder = snapshot.partitions[name]
        is_due = folder.topic is not None and bool(self._tombstones_due(found, folder))
        return is_due or self._is_released(snapshot, found, name)

    def save_planner_state(
        self, plan: Plan[LogSpec], shed: Sequence[LogSpec], *, is_queue_empty: bool
    ) -> None:
        """Do nothing: this planner keeps no state."""

    def validate(self, compaction: LogCompaction, snapshot: LogSnapshot, ledger: LogLedger) -> str | None:
        spec = compaction.spec
        if (spec.cut is not None) is not self.takes_cuts:
            return f"{spec.partition}: was planned in another mode (kafka.live); it is planned again"
        folder = snapshot.partitions.get(spec.partition)
        if folder is None:
            return f"{spec.partition} is gone"
        if folder.refusal:
            return f"{spec.partition}: {folder.refusal}"
        if spec.step is Step.PUBLISH:
            return None if snapshot.done(spec.partition) == spec.done else _why_not_published(spec)
        if folder.fingerprint != spec.fingerprint:
            return (
                f"{spec.partition} has changed since it was planned: another process writes into "
                f"{folder.folder}"
            )
        if snapshot.done(spec.partition) != spec.done and not self._begins_again(snapshot, spec, folder):
            return f"{spec.partition}: another compaction has done the step ({spec.step}) meanwhile"
        bounds = self._bounds(snapshot, spec.partition) if spec.step is Step.REWRITE else None
        if bounds is not None and not spec.terms.keeps_to(bounds.clean, bounds.resolved):
            return f"{spec.partition}: its thresholds in the group have changed since it was planned"
        return None

    def needs_worker(self, compaction: LogCompaction, snapshot: LogSnapshot) -> bool:
        return True

    # Executing

    def _begins_again(self, snapshot: LogSnapshot, spec: LogSpec, folder: PartitionFolder) -> bool:
        """Return whether the spec begins another round over an unchanged partition."""
        found = snapshot.round(spec.partition)
        return not spec.done and found is not None and self._is_due_again(snapshot, found, spec.partition)

    # Publishing

    def commit(
        self,
        compactions: Sequence[LogCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None] = lambda compaction_id, reason: None,
    ) -> Mapping[Ulid, str | None]:
        verdicts: dict[Ulid, str | None] = {}
        listed = self._read_snapshot()

        def change(version: Version | None) -> bytes | None:
            self.check_epoch(epoch)
            state = before = self._decoded(version)
            for compaction in compactions:
                if state.has(compaction.id):  # published before a crash, or before an error
                    verdicts[compaction.id] = None
                    continue
                snapshot = replace(listed, state=state)
                verdict = self.validate(compaction, snapshot, Ledger())
                if verdict is None and (changed := self._changed(compaction)):
                    verdict, state = changed, state.without_round(compaction.spec.partition)
                verdicts[compaction.id] = verdict
                if verdict is None:
                    state = state.with_round(compaction.spec.partition, self._after(compaction, snapshot))
                    state = self._with_standing(state, compaction, snapshot)
            return None if state == before else state.encode()

        self.states.update(change, self._clock, self._rng)
        published = (one for one in compactions if verdicts[one.id] is None)
        if self.member is not None and any(one.spec.step is not Step.INDEX for one in published):
            self.member.tell(self._source_url, self.state, self._update_state)
        return verdicts

    def _changed(self, compaction: LogCompaction) -> str:
        """Return why a publication found the topic to be another one; empty if it succeeded."""
        if compaction.spec.step is not Step.PUBLISH:
            return ""
        return self._report(compaction.id).refused

    def _report(self, compaction_id: Ulid) -> PublicationReport:
        key = self._report_key(compaction_id)
        return PUBLICATION_REPORTS.decode(self.store.get(key), key)

    def _update_state(self, change: Callable[[LogState], LogState | None]) -> bool:
        """Return whether the change was made."""
        is_done = False

        def changed(version: Version | None) -> bytes | None:
            nonlocal is_done
            state = change(self._decoded(version))
            is_done = state is not None
            return None if state is None else state.encode()

        self.states.update(changed, self._clock, self._rng)
        return is_done

    def _after(self, compaction: LogCompaction, snapshot: LogSnapshot) -> PartitionRound:
        spec = compaction.spec
        folder, done = snapshot.partitions[spec.partition], (*spec.done, compaction.id)
        if spec.step is Step.INDEX:
            indexed = self._indexed(spec, folder)
            policy = LogPolicy(
                min_compaction_lag_ms=spec.terms.min_compaction_lag_ms,
                newest_object=spec.terms.newest_segment,
            )
            settled = indexed.settled(policy, ulid_ms(compaction.id))
            settled_facts = indexed.facts[: len(settled.objects)]
            return PartitionRound(
                spec.fingerprint,
                done,
                settled.bound,
                len(settled.objects),
                len(folder.segments),
                folder.size_bytes,
                indexed.records,
                sum(facts.tombstones for facts in settled_facts),
                topic_id=folder.topic_id,
                activity=folder.activity,
                unkeyed=0 if folder.topic else sum(facts.unkeyed for facts in settled_facts),
                torn_bytes=indexed.torn_bytes,
                open_transaction=indexed.open_transaction,
            )
        found = replace(self._round(snapshot, spec), done=done)
        if spec.step is Step.MATCH:
            return found
        if spec.step is Step.PUBLISH:
            report = self._report(compaction.id)
            return replace(
                found,
                fingerprint=report.fingerprint,
                new_segments=report.objects,
                new_bytes=report.size_bytes,
            )
        sizes = [output.size_bytes for output in compaction.outputs]
        kept = get_kept(self.store, self.work_folder(compaction.id))
        return replace(
            found,
            new_segments=len(sizes),
            new_bytes=sum(sizes),
            kept_tombstone=kept.tombstone,
            kept_marker=kept.marker,
        )

    def _with_standing(self, state: LogState, compaction: LogCompaction, snapshot: LogSnapshot) -> LogState:
        """Add the standing that matching has found to the state."""
        spec = compaction.spec
        if self.member is None or spec.step is not Step.MATCH:
            return state
        found, folder = self._round(snapshot, spec), snapshot.partitions[spec.partition]
        indexed = self._indexed(spec, folder)
        keys = slice_keys(self.work_folder(compaction.id), indexed.slices)
        parts = len(folder.parts)
        firsts = [first_element(self.store, f"{key}.dead", OFFSETS, parts) for key in keys]
        dead = min((int(first) for first in firsts if first is not None), default=None)
        end = indexed.committed_end
        unresolved = indexed.first_in_transaction if folder.topic else indexed.first_unresolved
        marks = Marks(lowest(dead, found.bound), lowest(unresolved, end))
        sample = sample_of(self.store, keys)
        standing = PartitionStanding(marks, end, indexed.markers_end, sample)
        return replace(state, standings={**state.standings, number_of(spec.partition): standing})

    def was_committed(self, compaction: LogCompaction) -> bool:
        return self.state().has(compaction.id)


def _why_not_published(spec: LogSpec) -> str:
    return (
        f"{spec.partition}: the merged objects are not published: another run has published them, or the "
        "topic was deleted and created again"
    )


def _own(folder: PartitionFolder | None) -> OwnSettings:
    return OwnSettings.of(None if folder is None else folder.configs)


def _why_done(found: PartitionRound) -> str:
    said = "is compacted, and has not changed since"
    if not found.settled:
        said = (
            f"nothing is settled below offset {found.bound:,}: a transaction is open there, or records are "
            "young or not committed"
        )
    if found.open_transaction is not None:
        said += f"; {found.open_transaction}"
    if found.torn_bytes:
        said += (
            f"; the last {found.torn_bytes:,} bytes of its newest segment are not a whole batch, as in a "
            "copy of a running broker, and are left out"
        )
    return said


def _why_unkeyed(found: PartitionRound) -> str:
    return (
        f"{found.unkeyed:,} of its {found.records:,} records have no key, so it may not be a log of keys; to "
        "compact it, set kafka.keep_unkeyed to true, which keeps them, or to false, which removes them"
    )
