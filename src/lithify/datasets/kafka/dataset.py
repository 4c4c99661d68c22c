"""One topic or partition in folders of segments, and what Lithify made of it elsewhere.

    <source>/orders-0/…                        read only
    <output>/<id of a compaction>/orders-0/…   a compacted partition, whole once the state names it
    <output>/_lithify/                         ledger, lease and sidecar; below it
        state/…                                how far each partition is (`state.py`)
        index/orders-0/…                       indexes of segments, for all rounds (`kept_indexes.py`)
        work/<id>/…                            what another step leaves for the next one

A round has three steps, each a compaction of its own: index, match, rewrite (`tasks.py`). A step is refused
when it is to be carried out, and again when it is to be published, if the listing of the source is not the
one that was planned on. What a step has written is named by its id, which the ledger knew before; so whatever
lies in a folder whose id neither ledger nor state know is a leftover.

A topic in a broker's bucket is compacted in its place instead. Rewriting leaves what was merged in `work`,
and a fourth step publishes it (`publishing.py`). A round whose rewriting is done is the intent to publish:
from there on the folder changes by what Lithify writes, so it goes on whatever is listed, until all is done,
or the topic turns out to be another one than was read; then the round is forgotten, and the next one looks
anew.

A log may belong to a group of copies, which then says what tombstones and markers may go (`members.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

from lithify.clock import Clock
from lithify.compaction.backlog import Backlog
from lithify.compaction.lease import Permit
from lithify.compaction.model import Compaction, Ledger
from lithify.compaction.proposal import NOTHING_HELD, Held, Plan, Planner, Proposal
from lithify.compaction.work import Job, RangeOutcome, RangeWork
from lithify.config.durations import FOREVER, to_milliseconds
from lithify.coordination.ledger_documents import LedgerFormat, Values
from lithify.datasets.kafka.fenced import first_element
from lithify.datasets.kafka.kept_indexes import index_key, index_of_object, is_facts
from lithify.datasets.kafka.layouts.contract import BrokerTopic, Layout, PartitionFolder
from lithify.datasets.kafka.layouts.objects import Cut, ObjectTopic
from lithify.datasets.kafka.layouts.segments import SegmentFolders, number_of
from lithify.datasets.kafka.members import LogMember, lowest, waits
from lithify.datasets.kafka.merging import MANIFEST_SUFFIX, MergeTask, merge_chunk
from lithify.datasets.kafka.own_settings import OwnSettings
from lithify.datasets.kafka.planner import LogObject, LogPolicy, Partition, plan
from lithify.datasets.kafka.publishing import PublishTask, Report, Standstill, publish_merged
from lithify.datasets.kafka.retention import NO_BOUND, Rules
from lithify.datasets.kafka.round import Group as SegmentGroup
from lithify.datasets.kafka.round import Indexed
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import STEPS, Round, State, Step
from lithify.datasets.kafka.tasks import (
    OFFSETS,
    IndexTask,
    MatchPlan,
    MatchTask,
    Output,
    Place,
    RewriteTask,
    TaskResult,
    Work,
    index_segment,
    match_slice,
    recorded,
    rewrite_group,
    slice_keys,
)
from lithify.datasets.kafka.terms import Terms
from lithify.datasets.own_ledger import OwnLedgerDataset
from lithify.errors import Refused
from lithify.ids import Ids, Ulid, parse_ulid, ulid_ms
from lithify.jsonvalues import text, whole_number
from lithify.planning.admission import Capacity
from lithify.store.keys import join, url_of
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionedFiles
from lithify.watermarks.groups import Group, Marks, Standing

OWN_FOLDER = "_lithify"
_MAX_RANGES = 1 << 31
_LATER = 0.9
"""Priority of what a round has begun: its runs take room until it is whole."""
_SELDOM = 0.1
"""Priority of a round that only removes tombstones."""


@dataclass(frozen=True, slots=True)
class LogSpec:
    """A step of a round."""

    partition: str
    fingerprint: str
    """Of its folder, as it was planned."""
    done: tuple[Ulid, ...]
    """The steps before."""
    terms: Terms
    cut: Cut | None = None
    """Of a topic that is copied, or compacted live: which of its objects this is about."""

    @property
    def step(self) -> Step:
        return STEPS[len(self.done)]


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """All partitions as they are listed, and how far Lithify is with each."""

    partitions: Mapping[str, PartitionFolder]
    state: State
    group: Group | None = None
    """`None` where it belongs to none."""

    def done(self, partition: str) -> tuple[Ulid, ...]:
        """The steps that are done of the partition as it is now."""
        found = self.round(partition)
        return () if found is None else found.done

    def round(self, partition: str) -> Round | None:
        """The round of the partition as it is now."""
        found, folder = self.state.rounds.get(partition), self.partitions.get(partition)
        if found is None or folder is None or found.topic_id != folder.topic_id:
            return None
        if found.fingerprint != folder.fingerprint and found.next_step is not Step.PUBLISH:
            return None
        return found

    def with_part(self, partition: str, meant: PartitionFolder | None) -> Self:
        """With this part of a partition, or without it."""
        partitions = {name: one for name, one in self.partitions.items() if name != partition or meant}
        if meant is not None:
            partitions[partition] = meant
        return replace(self, partitions=partitions)


def _read_spec(found: Mapping[str, object]) -> LogSpec:
    done = found["done"]
    if not isinstance(done, list) or len(done) >= len(STEPS):
        raise ValueError(f"{done!r} are no steps")
    terms = found["terms"]
    if not isinstance(terms, dict):
        raise ValueError(f"{terms!r} are no terms")
    steps = tuple(map(parse_ulid, done))
    cut = Cut.of(found.get("cut"))
    return LogSpec(text(found["partition"]), text(found["fingerprint"]), steps, Terms.of(terms), cut)


def _spec_fields(spec: LogSpec) -> dict[str, object]:
    return {
        "partition": spec.partition,
        "fingerprint": spec.fingerprint,
        "done": spec.done,
        "terms": spec.terms.fields(),
        **({} if spec.cut is None else {"cut": [spec.cut.until_ms, spec.cut.below]}),
    }


LEDGERS: LedgerFormat[LogSpec, int, Output] = LedgerFormat(
    Values(_spec_fields, _read_spec),
    Values(lambda number: number, lambda found: whole_number(found, most=_MAX_RANGES)),
    Values(
        lambda output: [output.key, output.size_bytes],
        lambda found: Output(text(found[0]), whole_number(found[1], most=NO_BOUND)),
    ),
)
LogCompaction = Compaction[LogSpec, int, Output]
LogLedger = Ledger[LogSpec, int, Output]


class LogDataset(OwnLedgerDataset[LogSnapshot, LogSpec, int, Output]):
    """The partitions in one folder."""

    takes_cuts: ClassVar = False
    """Whether its steps are about a part of what is listed (`LogSpec.cut`)."""

    def __init__(
        self,
        url: str,
        source: tuple[ObjectStore, str],
        output: tuple[ObjectStore, str],
        clock: Clock,
        ids: Ids,
        settings: KafkaSettings,
        source_options: Mapping[str, str] | None = None,
        output_options: Mapping[str, str] | None = None,
        member: LogMember | None = None,
    ) -> None:
        """Stores with a prefix in each; the options are those with which tasks open them."""
        self.output_root = output[1]
        super().__init__(url, output[0], join(output[1], OWN_FOLDER), LEDGERS, clock, ids, random.Random())
        self._source, self._root = source
        self._source_url = url_of(self._source.url, self._root)
        self._source_place = Place(self._source.url, source_options or {})
        self._own_place = Place(self.store.url, output_options or {})
        self._settings = settings
        self.member = member
        folder = join(self.own_folder, "state")
        self.states = VersionedFiles(self.store, folder, ".json", f"{folder}.boundary", ids)
        self._now_ms = clock.now_ms

    @cached_property
    def _layout(self) -> Layout:
        place = self._source, self._root
        return ObjectTopic(*place) if ObjectTopic.is_at(*place) else SegmentFolders(*place)

    # Leadership

    @property
    def refusal(self) -> str | None:
        """Why it can be planned and shown, but not compacted; `None` when it can."""
        return self._layout.refusal

    def epoch(self) -> int:
        """`Refused` where nobody may compact it, or its name in the group is another log's."""
        if self.refusal is not None:
            raise Refused(f"{self.url}: {self.refusal}")
        if self.member is not None:
            self.member.check(self.member.read(), self._source_url)
        return super().epoch()

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        """Says first of which log the output is."""
        self.epoch()  # refuses where there is nothing

        def claim(version: Version | None) -> bytes | None:
            state = self._decoded(version)
            return None if state.source else self._claimed(state).encode()

        self.states.update(claim, self._clock, self._rng)
        return super().take_epoch(permit)

    def _claimed(self, state: State) -> State:
        """The state of who begins."""
        return replace(state, source=self._source_url)

    # Reading

    def snapshot(self) -> LogSnapshot:
        partitions = self.partitions()
        self._layout.check_output(self.store, self.output_root)
        state = self.state()
        return LogSnapshot(partitions, state, None if self.member is None else self.member.read())

    def partitions(self) -> Mapping[str, PartitionFolder]:
        """All of them, as they are listed now.

        Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
        """
        return self._layout.partitions()

    @property
    def source_url(self) -> str:
        """Of the folder that is read."""
        return self._source_url

    def state(self) -> State:
        """How far Lithify is. `Refused` where that is said of another log."""
        return self._decoded(self.states.latest())

    def _decoded(self, version: Version | None) -> State:
        if version is None:
            return State()
        state = self.states.decode(version, State.decode)
        if state.source not in ("", self._source_url):
            raise Refused(
                f"{self.url}: {self.output_root} holds what was made of {state.source}; name another output"
            )
        return state

    @property
    def ledger_versions(self) -> VersionedFiles:
        """The numbered files of the ledger."""
        return self._ledger.files

    def work_folder(self, compaction_id: Ulid) -> str:
        """Where a step leaves what the next one needs."""
        return join(self.own_folder, "work", compaction_id)

    def index_folder(self, partition: str) -> str:
        """Where the indexes of a partition's segments are kept."""
        return join(self.own_folder, "index", partition)

    def output_folder(self, compaction_id: Ulid, partition: str) -> str:
        """Where a partition is written anew."""
        return join(self.output_root, compaction_id, partition)

    def backlog(self, snapshot: LogSnapshot, now_ms: int) -> tuple[Backlog, ...]:
        return ()  # nobody writes it

    def unit(self, spec: LogSpec) -> str:
        return spec.partition

    def name(self, spec: LogSpec) -> str:
        return f"{spec.partition} {spec.step}"

    def scope(self, spec: LogSpec) -> frozenset[str]:
        return frozenset({f"{spec.partition} {spec.fingerprint} {spec.step}"})

    def capacity(self, snapshot: LogSnapshot) -> Capacity:
        return Capacity()

    def newest_ms(self, snapshot: LogSnapshot) -> int:
        return self._now_ms()

    def sources(self, spec: LogSpec) -> frozenset[str]:
        return frozenset({spec.partition})

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

    def policy(self, topic: BrokerTopic | None = None, *, full: bool = False) -> LogPolicy:
        """When a partition is worth it, as its topic says, or else the settings; with `full` whenever it has
        changed."""
        settings, own = self._settings, OwnSettings.of(topic)
        lag = settings.max_compaction_lag
        default_lag_ms = None if lag == FOREVER else to_milliseconds(lag)
        ratio = settings.min_cleanable_dirty_ratio if own.dirty_ratio is None else own.dirty_ratio
        return LogPolicy(
            min_cleanable_dirty_ratio=0.0 if full else ratio,
            min_compaction_lag_ms=self._min_lag_ms(own),
            max_compaction_lag_ms=default_lag_ms if own.max_lag_ms is None else own.max_lag_ms,
            target_object_bytes=self._layout.target_bytes or settings.segment_bytes,
        )

    def _min_lag_ms(self, own: OwnSettings) -> int:
        return (
            to_milliseconds(self._settings.min_compaction_lag) if own.min_lag_ms is None else own.min_lag_ms
        )

    def _delete_retention_ms(self, own: OwnSettings) -> int:
        if own.delete_retention_ms is not None:
            return own.delete_retention_ms
        return to_milliseconds(self._settings.delete_retention)

    def terms(self, topic: BrokerTopic | None = None, marks: Marks | None = None) -> Terms:
        """What a step is planned on now; `marks` say what may be removed, if there is a group."""
        settings, own = self._settings, OwnSettings.of(topic)
        removed = {} if marks is None else {"tombstones_below": marks.clean, "markers_below": marks.resolved}
        return Terms(
            min_compaction_lag_ms=self._min_lag_ms(own),
            delete_retention_ms=self._delete_retention_ms(own),
            producer_id_expiration_ms=to_milliseconds(settings.producer_id_expiration),
            segment_bytes=int(settings.segment_bytes),
            keep_unkeyed=settings.keep_unkeyed or topic is not None,
            quiet_ms=to_milliseconds(settings.quiet_period),
            **removed,
        )

    def _bounds(self, snapshot: LogSnapshot, name: str) -> Marks | None:
        if self.member is None or snapshot.group is None:
            return None
        return self.member.bounds(snapshot.group, snapshot.state, number_of(name))

    def _waits(self, snapshot: LogSnapshot, name: str) -> list[str]:
        """What of a partition may not go yet, and why, in words."""
        if self.member is None or snapshot.group is None:
            return []
        if not self.member.is_in(snapshot.group, snapshot.state):
            return [f"{self.member.name} is no member of the group, so tombstones and markers stay"]
        return waits(snapshot.group, number_of(name))

    def planner(self, *, full: bool = False) -> Planner:
        """What plans one run of a command."""

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
        """The next step of each round that has begun, and the first of those that are worth it."""
        busy = {compaction.spec.partition for compaction in ledger.active()}
        proposals: list[Proposal[LogSpec]] = []
        notes = []
        for name, folder in snapshot.partitions.items():
            if name in held:
                notes.append(f"{name}: {held[name]}")
            elif name in busy:
                notes.append(f"{name}: is being compacted")
            elif (found := snapshot.round(name)) is None or self._is_due_again(found, folder):
                verdict = self._judge(snapshot, name, folder, full=full)
                proposals += verdict if isinstance(verdict, list) else []
                notes += [verdict] if isinstance(verdict, str) else []
            elif found.next_step is None:
                notes.append(f"{name}: {_why_done(found)}")
            else:
                terms = self.terms(folder.topic, self._bounds(snapshot, name))
                spec = LogSpec(name, found.fingerprint, found.done, terms)
                cost_bytes, step = self.cost_bytes(spec, snapshot), len(found.done) + 1
                reason = f"{name}: step {step} of {len(found.steps)} ({found.next_step})"
                if found.next_step is Step.REWRITE:
                    reason = "; ".join((reason, *self._waits(snapshot, name)))
                proposals.append(Proposal(spec, _LATER, cost_bytes, reason))
        if self.refusal is not None:
            notes.append(f"{self.url}: {self.refusal}")
        ordered = sorted(proposals, key=lambda proposal: -proposal.priority)
        return Plan(tuple(ordered), tuple(notes))

    def _judge(
        self, snapshot: LogSnapshot, name: str, folder: PartitionFolder, *, full: bool
    ) -> list[Proposal[LogSpec]] | str:
        """Whether a partition is worth a round: a proposal, or why not."""
        segments, before = folder.segments, snapshot.state.rounds.get(name)
        if before is not None and before.topic_id != folder.topic_id:
            before = None
        ends = [*(segment.base_offset for segment in segments[1:]), segments[-1].base_offset + 1]
        objects = [
            LogObject(segment.base_offset, end, segment.size_bytes, -1, segment.modified_ms)
            for segment, end in zip(segments, ends, strict=True)
        ]
        clean_below = 0 if before is None or full else before.bound
        known = [Partition(number_of(name), objects, clean_below, folder.bound)]
        found = plan(known, self.policy(folder.topic, full=full), self._now_ms())
        spec = LogSpec(name, folder.fingerprint, (), self.terms(folder.topic))
        cost_bytes = self.cost_bytes(spec, snapshot)
        if found.rounds:
            (worth,) = found.rounds
            return [Proposal(spec, worth.priority, cost_bytes, worth.reason)]
        due = self._tombstones_due(before, folder)
        if due:
            reason = f"{name}: {due:,} tombstones have stayed for delete.retention.ms"
            return [Proposal(spec, _SELDOM, cost_bytes, reason)]
        return found.notes[0]

    def _tombstones_due(self, before: Round | None, folder: PartitionFolder) -> int:
        """How many tombstones the last round met whose delete horizon has come since."""
        if before is None or not before.is_whole:
            return 0
        horizon_ms = ulid_ms(before.done[-1]) + self._delete_retention_ms(OwnSettings.of(folder.topic))
        return before.tombstones if self._now_ms() >= horizon_ms else 0

    def _is_due_again(self, found: Round, folder: PartitionFolder) -> bool:
        """Whether tombstones may go of what has not changed since: only where it was compacted in its
        place, since elsewhere the same folder would be read again."""
        return folder.topic is not None and bool(self._tombstones_due(found, folder))

    def remember(self, plan: Plan[LogSpec], shed: Sequence[LogSpec], *, is_queue_empty: bool) -> None:
        """Nothing is worth keeping."""

    def validate(self, compaction: LogCompaction, snapshot: LogSnapshot, ledger: LogLedger) -> str | None:
        spec = compaction.spec
        if (spec.cut is not None) is not self.takes_cuts:
            return f"{spec.partition}: was planned in another mode (kafka.live); it is planned anew"
        folder = snapshot.partitions.get(spec.partition)
        if folder is None:
            return f"{spec.partition} is gone"
        if spec.step is Step.PUBLISH:
            return None if snapshot.done(spec.partition) == spec.done else _why_not_published(spec)
        if folder.fingerprint != spec.fingerprint:
            return f"{spec.partition} has changed since it was planned: somebody writes into {folder.folder}"
        if snapshot.done(spec.partition) != spec.done and not self._begins_again(snapshot, spec, folder):
            return f"{spec.partition}: another compaction has done the step ({spec.step}) meanwhile"
        bounds = self._bounds(snapshot, spec.partition) if spec.step is Step.REWRITE else None
        if bounds is not None and not spec.terms.keeps_to(bounds.clean, bounds.resolved):
            return f"{spec.partition}: its place in the group is another than when it was planned"
        return None

    def needs_worker(self, compaction: LogCompaction, snapshot: LogSnapshot) -> bool:
        return True

    # Executing

    def prepare(self, compaction: LogCompaction, snapshot: LogSnapshot, slots: int = 0) -> Job[int]:
        if (reason := self.validate(compaction, snapshot, Ledger())) is not None:
            raise Refused(reason)
        works = self._to_do(compaction, snapshot)
        progress = () if compaction.progress is None else compaction.progress.ranges
        for part in progress:
            if part.outputs and part.range < len(works):
                (output,) = part.outputs
                result = TaskResult(output, {}, 0, 0, 0.0)
                works[part.range] = RangeWork(part.range, recorded, result, 0)
        return Job(tuple(works))

    def _to_do(self, compaction: LogCompaction, snapshot: LogSnapshot) -> list[RangeWork[int]]:
        folder = snapshot.partitions[compaction.spec.partition]
        prepare = {
            Step.INDEX: self._to_index,
            Step.MATCH: self._to_match,
            Step.REWRITE: self._to_merge if folder.topic else self._to_rewrite,
            Step.PUBLISH: self._to_publish,
        }
        return prepare[compaction.spec.step](compaction, snapshot, folder)

    def _to_index(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        works, target = [], self.index_folder(compaction.spec.partition)
        kept = {index_of_object(meta.key) for meta in self.store.list(target) if is_facts(meta.key)}
        ends = [*(part.base_offset for part in folder.parts[1:]), NO_BOUND]
        for number, (segment, end) in enumerate(zip(folder.parts, ends, strict=True)):
            key = index_key(target, segment)
            task = IndexTask(self._work(compaction, number, key), segment, end)
            cost_bytes = 1 if key in kept else max(1, segment.size_bytes)
            works.append(RangeWork(number, index_segment, task, cost_bytes))
        return works

    def _to_match(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        found = self._round(snapshot, compaction.spec)
        indexed = self._indexed(compaction.spec, folder)
        target, count = self.work_folder(compaction.id), indexed.slices
        plan_key = join(target, "plan")
        MatchPlan(indexed.segments, indexed.fences, indexed.spans).put(self.store, plan_key)
        works = []
        for number, key in enumerate(slice_keys(target, count)):
            task = MatchTask(self._work(compaction, number, key), number, count, found.bound, plan_key)
            works.append(RangeWork(number, match_slice, task, max(1, indexed.records * 32 // count)))
        return works

    def _to_rewrite(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        found, terms = self._round(snapshot, compaction.spec), compaction.spec.terms
        indexed = self._indexed(compaction.spec, folder)
        matched, rules = self.work_folder(found.done[1]), _rules(compaction, found)
        now_ms = rules.now_ms
        expiration_ms = terms.producer_id_expiration_ms
        works = []
        for number, group in enumerate(indexed.groups(found.settled, terms.segment_bytes)):
            plan_key = join(self.work_folder(compaction.id), f"group-{number:05d}.json")
            self.store.put(plan_key, indexed.group_plan(group, now_ms, expiration_ms).encode())
            segments = folder.segments[group.first : group.first + group.count]
            task = RewriteTask(
                self._work(compaction, number, self.output_folder(compaction.id, compaction.spec.partition)),
                segments[0].base_offset,
                segments,
                matched if group.is_settled else "",
                indexed.slices,
                group.first,
                len(folder.segments),
                plan_key,
                rules,
                folder.companions if number == 0 else (),
            )
            size_bytes = sum(segment.size_bytes for segment in segments)
            works.append(RangeWork(number, rewrite_group, task, max(1, size_bytes)))
        return works

    def _to_merge(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        found = self._round(snapshot, compaction.spec)
        rules = _rules(compaction, found)
        indexed = self._indexed(compaction.spec, folder)
        works = []
        for number, chunk in enumerate(folder.parts[: found.settled]):
            plan_key = join(self.work_folder(compaction.id), f"group-{number:05d}.json")
            group = indexed.group_plan(SegmentGroup(number, 1, is_settled=True), rules.now_ms, 0)
            self.store.put(plan_key, group.encode())
            rewrite = RewriteTask(
                self._work(compaction, number, self._staged(compaction.id)),
                chunk.base_offset,
                (chunk,),
                self.work_folder(found.done[1]),
                indexed.slices,
                number,
                len(folder.parts),
                plan_key,
                rules,
            )
            task = MergeTask(rewrite, self._layout.target_bytes or compaction.spec.terms.segment_bytes)
            works.append(RangeWork(number, merge_chunk, task, max(1, chunk.size_bytes)))
        return works

    def _to_publish(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        found, terms = self._round(snapshot, compaction.spec), compaction.spec.terms
        staged = self._staged(found.done[-1])
        names = sorted(meta.key for meta in self.store.list(staged))
        task = PublishTask(
            self._work(compaction, 0, self._report_key(compaction.id)),
            self._root,
            folder.folder,
            found.topic_id,
            Standstill(found.activity, ulid_ms(found.done[0]), terms.quiet_ms),
            staged,
            tuple(key for key in names if key.endswith(MANIFEST_SUFFIX)),
        )
        return [RangeWork(0, publish_merged, task, max(1, folder.size_bytes))]

    def _staged(self, compaction_id: Ulid) -> str:
        """Where what was merged of a partition waits to be published."""
        return join(self.work_folder(compaction_id), "staged")

    def _report_key(self, compaction_id: Ulid) -> str:
        return join(self.work_folder(compaction_id), "published.json")

    def _begins_again(self, snapshot: LogSnapshot, spec: LogSpec, folder: PartitionFolder) -> bool:
        """Whether it is the first step of another round over what has not changed."""
        found = snapshot.round(spec.partition)
        return not spec.done and found is not None and self._is_due_again(found, folder)

    def _indexed(self, spec: LogSpec, folder: PartitionFolder) -> Indexed:
        return Indexed(self._source, self.store, self.index_folder(spec.partition), folder)

    def _round(self, snapshot: LogSnapshot, spec: LogSpec) -> Round:
        found = snapshot.round(spec.partition)
        assert found is not None, "the step was validated"
        return found

    def _work(self, compaction: LogCompaction, number: int, target: str) -> Work:
        owner = compaction.worker
        reporting = None
        if owner is not None:
            reporting = self._journal.reporting(compaction.id, number, owner.id, owner.last_heartbeat_ms)
        return Work(self._source_place, self._own_place, target, reporting)

    def outcome(self, result: TaskResult) -> RangeOutcome[Output]:
        return RangeOutcome(
            (result.output,), result.bytes_read, result.bytes_written, result.rows, result.cpu_s, 0
        )

    # Publishing

    def commit(
        self,
        compactions: Sequence[LogCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None] = lambda compaction_id, reason: None,
    ) -> Mapping[Ulid, str | None]:
        verdicts: dict[Ulid, str | None] = {}
        listed = self.snapshot()

        def change(version: Version | None) -> bytes | None:
            self.check_epoch(epoch)
            state = before = self._decoded(version)
            for compaction in compactions:
                if state.has(compaction.id):  # by somebody who died, or failed, before saying so
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
        """What a publication has found to be another than was read; empty if it is done."""
        if compaction.spec.step is not Step.PUBLISH:
            return ""
        return Report.read(self.store, self._report_key(compaction.id)).refused

    def _update_state(self, change: Callable[[State], State | None]) -> bool:
        """Whether the state was changed."""
        is_done = False

        def changed(version: Version | None) -> bytes | None:
            nonlocal is_done
            state = change(self._decoded(version))
            is_done = state is not None
            return None if state is None else state.encode()

        self.states.update(changed, self._clock, self._rng)
        return is_done

    def _after(self, compaction: LogCompaction, snapshot: LogSnapshot) -> Round:
        """The round once this step is published."""
        spec = compaction.spec
        folder, done = snapshot.partitions[spec.partition], (*spec.done, compaction.id)
        if spec.step is Step.INDEX:
            indexed = self._indexed(spec, folder)
            policy = LogPolicy(min_compaction_lag_ms=spec.terms.min_compaction_lag_ms)
            settled = indexed.settled(policy, ulid_ms(compaction.id))
            return Round(
                spec.fingerprint,
                done,
                settled.bound,
                len(settled.objects),
                len(folder.segments),
                folder.size_bytes,
                indexed.records,
                sum(facts.tombstones for facts in indexed.facts[: len(settled.objects)]),
                topic_id=folder.topic_id,
                activity=folder.activity,
            )
        found = replace(self._round(snapshot, spec), done=done)
        if spec.step is Step.MATCH:
            return found
        if spec.step is Step.PUBLISH:
            report = Report.read(self.store, self._report_key(compaction.id))
            return replace(
                found,
                fingerprint=report.fingerprint,
                new_segments=report.objects,
                new_bytes=report.size_bytes,
            )
        sizes = [output.size_bytes for output in compaction.outputs]
        return replace(found, new_segments=len(sizes), new_bytes=sum(sizes))

    def _with_standing(self, state: State, compaction: LogCompaction, snapshot: LogSnapshot) -> State:
        """The state with what matching has found out of what is in the partition."""
        spec = compaction.spec
        if self.member is None or spec.step is not Step.MATCH:
            return state
        found, folder = self._round(snapshot, spec), snapshot.partitions[spec.partition]
        indexed = self._indexed(spec, folder)
        keys = slice_keys(self.work_folder(compaction.id), indexed.slices)
        parts = len(folder.parts)
        firsts = [first_element(self.store, f"{key}.dead", OFFSETS, parts) for key in keys]
        dead = min((int(first) for first in firsts if first is not None), default=None)
        marks = Marks(lowest(dead, found.bound), lowest(indexed.first_in_transaction, indexed.end_offset))
        standing = Standing(marks, indexed.end_offset)
        return replace(state, standings={**state.standings, number_of(spec.partition): standing})

    def was_committed(self, compaction: LogCompaction) -> bool:
        return self.state().has(compaction.id)


def _rules(compaction: LogCompaction, found: Round) -> Rules:
    """How a round is rewritten."""
    terms = compaction.spec.terms
    return Rules(
        ulid_ms(compaction.id),  # the same for whoever takes it up
        terms.delete_retention_ms,
        terms.keep_unkeyed,
        found.bound,
        terms.tombstones_below,
        terms.markers_below,
    )


def _why_not_published(spec: LogSpec) -> str:
    return (
        f"{spec.partition}: what was merged is not published any more: another run has done so, or the topic "
        "was deleted and made again"
    )


def _why_done(found: Round) -> str:
    if not found.settled:
        return f"nothing is settled below offset {found.bound:,}: a transaction is open, or records are young"
    return "is compacted, and has not changed since"
