"""Prepares the tasks of each step of a round (`dataset.py`).

1. A step is prepared only if the partition is unchanged since planning. Finished ranges are not run again.
2. Indexing has a range for each part of the folder, matching one for each slice of the hash space, rewriting
   one for each new segment or chunk of objects, publishing one.
3. Facts about other ranges are put into the step's own folder first, so that tasks carry only small values.
4. Every worker derives the same ranges from the listing, the terms and the earlier steps.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cached_property

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.base.ids import Ids, Ulid, ulid_ms
from lithify.datasets.kafka.buckets.merging import MANIFEST_SUFFIX, ObjectMergeTask, merge_chunk
from lithify.datasets.kafka.buckets.publishing import PublishTask, Standstill, publish_merged
from lithify.datasets.kafka.cleaning.cleaning_plan import Indexed, SegmentGroup
from lithify.datasets.kafka.cleaning.kept_indexes import index_key, index_of_object, is_facts
from lithify.datasets.kafka.cleaning.retention import NO_BOUND, Rules
from lithify.datasets.kafka.cleaning.tasks import (
    IndexTask,
    MatchPlan,
    MatchTask,
    Output,
    Place,
    RewriteTask,
    StepWork,
    TaskResult,
    index_segment,
    match_slice,
    recorded,
    rewrite_group,
    slice_keys,
)
from lithify.datasets.kafka.layouts.contract import LogLayout, PartitionFolder
from lithify.datasets.kafka.layouts.objects import ObjectTopic
from lithify.datasets.kafka.layouts.segments import SegmentFolders
from lithify.datasets.kafka.members import LogMember
from lithify.datasets.kafka.model import LEDGERS, LogCompaction, LogSnapshot, LogSpec
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import PartitionRound, Step
from lithify.datasets.own_ledger import OwnLedgerDataset
from lithify.protocol.model import Ledger
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.store.keys import join, url_of
from lithify.store.objects import ObjectStore
from lithify.store.versions import VersionedFiles

OWN_FOLDER = "_lithify"
NEVER_MS = (1 << 63) - 1


class LogSteps(OwnLedgerDataset[LogSnapshot, LogSpec, int, Output]):
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
        """`source` and `output` are a store and a prefix in it; tasks open them with the options."""
        self.output_root = output[1]
        super().__init__(url, output[0], join(output[1], OWN_FOLDER), LEDGERS, clock, ids, random.Random())
        self._source, self._root = source
        self._source_url = url_of(self._source.url, self._root)
        self._source_place = Place(self._source.url, source_options or {})
        self._own_place = Place(self.store.url, output_options or {})
        self._settings = settings
        self.member = member
        folder = join(self.own_folder, "state")
        self.states = VersionedFiles(
            self.store, folder, ".json", f"{folder}.boundary", ids, clock=clock, bond=self._bond
        )
        self._now_ms = clock.now_ms

    @cached_property
    def _layout(self) -> LogLayout:
        place = self._source, self._root
        if ObjectTopic.is_at(*place):
            return ObjectTopic(*place)
        return SegmentFolders(*place, is_compacted=self._settings.cleanup_policy is not None)

    # Folders

    def work_folder(self, compaction_id: Ulid) -> str:
        """Return the folder in which a step leaves results for the next one."""
        return join(self.own_folder, "work", compaction_id)

    def index_folder(self, partition: str) -> str:
        return join(self.own_folder, "index", partition)

    def output_folder(self, compaction_id: Ulid, partition: str) -> str:
        return join(self.output_root, compaction_id, partition)

    def _staged(self, compaction_id: Ulid) -> str:
        return join(self.work_folder(compaction_id), "staged")

    def _report_key(self, compaction_id: Ulid) -> str:
        return join(self.work_folder(compaction_id), "published.json")

    # Executing

    def prepare(self, compaction: LogCompaction, snapshot: LogSnapshot, slots: int = 0) -> RangeJob[int]:
        if (reason := self.validate(compaction, snapshot, Ledger())) is not None:
            raise Refused(reason)
        works = self._to_do(compaction, snapshot)
        progress = () if compaction.progress is None else compaction.progress.ranges
        for part in progress:
            if part.outputs and part.range < len(works):
                result = TaskResult(part.outputs, {}, 0, 0, 0.0, 0)
                works[part.range] = RangeWork(part.range, recorded, result, 0)
        return RangeJob(tuple(works))

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
            work = self._work(compaction, number, key)
            task = MatchTask(work, number, count, found.bound, plan_key, folder.start)
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
            segments = indexed.whole_segments(group)
            task = RewriteTask(
                self._work(compaction, number, self.output_folder(compaction.id, compaction.spec.partition)),
                segments[0].base_offset,
                segments,
                matched if group.is_settled else "",
                indexed.slices,
                group.first,
                len(folder.parts),
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
            task = ObjectMergeTask(rewrite, self._layout.target_bytes or compaction.spec.terms.segment_bytes)
            works.append(RangeWork(number, merge_chunk, task, max(1, chunk.size_bytes)))
        return works

    def _to_publish(
        self, compaction: LogCompaction, snapshot: LogSnapshot, folder: PartitionFolder
    ) -> list[RangeWork[int]]:
        found, terms = self._round(snapshot, compaction.spec), compaction.spec.terms
        staged = self._staged(found.done[-1])
        listed = list(self.store.list(staged))
        # Merging began after the index, and with it the broker's last activity, was recorded in the state.
        seen_ms = min((meta.last_modified_ms for meta in listed), default=NEVER_MS)
        task = PublishTask(
            self._work(compaction, 0, self._report_key(compaction.id)),
            self._root,
            folder.folder,
            found.topic_id,
            Standstill(found.activity, seen_ms, terms.quiet_ms),
            staged,
            tuple(sorted(meta.key for meta in listed if meta.key.endswith(MANIFEST_SUFFIX))),
        )
        return [RangeWork(0, publish_merged, task, max(1, folder.size_bytes))]

    def _indexed(self, spec: LogSpec, folder: PartitionFolder) -> Indexed:
        return Indexed(self._source, self.store, self.index_folder(spec.partition), folder)

    def _round(self, snapshot: LogSnapshot, spec: LogSpec) -> PartitionRound:
        found = snapshot.round(spec.partition)
        assert found is not None, "the step was validated"
        return found

    def _work(self, compaction: LogCompaction, number: int, target: str) -> StepWork:
        owner = compaction.worker
        reporting = None
        if owner is not None:
            reporting = self._journal.reporting(compaction.id, number, owner.id, owner.last_heartbeat_ms)
        return StepWork(self._source_place, self._own_place, target, reporting)

    def outcome(self, result: TaskResult) -> RangeOutcome[Output]:
        return RangeOutcome(
            result.outputs,
            result.bytes_read,
            result.bytes_written,
            result.rows,
            result.cpu_s,
            result.peak_memory_bytes,
        )


def _rules(compaction: LogCompaction, found: PartitionRound) -> Rules:
    terms = compaction.spec.terms
    return Rules(
        ulid_ms(compaction.id),  # not this machine's time, so that every worker uses the same
        terms.delete_retention_ms,
        terms.keep_unkeyed,
        found.bound,
        terms.tombstones_below,
        terms.markers_below,
    )
