"""A third kind of dataset, as small as one can be: text files that are put together.

`texts:///folder` has its files under `parts/`, and which of them count, in order, in the latest version of
`index/`. A compaction replaces neighbours by one file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from lithify.base.backlog import Backlog, Detail
from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.errors import CorruptObject, LithifyError, Refused
from lithify.base.events import GarbageCollected, Observer
from lithify.base.ids import Ids, Ulid
from lithify.base.jsonvalues import text
from lithify.config.model import Config
from lithify.config.sections import CollectionSettings, OwnSection, PositiveInt
from lithify.coordination.ledger_documents import LedgerFormat, Values
from lithify.datasets.collecting import Due, PeriodicCollector
from lithify.datasets.kind import DatasetRun, Kind, ShownPlan
from lithify.datasets.maintenance import Maintenance
from lithify.datasets.options import CommandArgs, CommandOptions
from lithify.datasets.own_ledger import OwnLedgerDataset
from lithify.datasets.waiting import command_waiting
from lithify.planning.admission import Capacity
from lithify.protocol.checks import check_compactions
from lithify.protocol.finding import Finding, ok, problem
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner, Proposal, TaskIdentity
from lithify.protocol.status import Status
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from lithify.store.versions import Version, VersionedFiles
from lithify.views.blocks import Line, Shown, Table, columns, notes

OPTIONS = CommandOptions()


class TextSettings(OwnSection):
    """The section `[texts]`."""

    NAME: ClassVar = "texts"
    min_files: PositiveInt = Field(default=4, description="Fewer are left as they are")


Texts = tuple[tuple[str, int], ...]  # names and bytes of the files that count, in order
Spec = tuple[str, ...]
LEDGERS: LedgerFormat[Spec, None, tuple[str, int]] = LedgerFormat(
    Values(lambda spec: {"texts": spec}, lambda found: tuple(map(text, found["texts"]))),
    Values(lambda part: part, lambda found: None),
    Values(list, lambda found: (text(found[0]), int(found[1]))),
)
TextCompaction = Compaction[Spec, None, tuple[str, int]]
TextLedger = Ledger[Spec, None, tuple[str, int]]


@dataclass(frozen=True)
class Task:
    store_url: str
    sources: tuple[str, ...]
    target: str


def put_together(task: Task) -> tuple[str, int]:
    """Runs inside a Spark task."""
    store, _ = open_store(task.store_url)
    data = b"".join(store.get(key) for key in task.sources)
    store.put(task.target, data)
    return task.target, len(data)


class TextDataset(OwnLedgerDataset[Texts, Spec, None, tuple[str, int]]):
    """One folder of texts."""

    def __init__(
        self, url: str, store: ObjectStore, root: str, clock: Clock, ids: Ids, settings: TextSettings
    ) -> None:
        super().__init__(url, store, f"{root}/_lithify", LEDGERS, clock, ids, random.Random())
        self.root, self._settings = root, settings
        self._index = VersionedFiles(
            store,
            f"{root}/index",
            ".json",
            f"{root}/index.boundary",
            ids,
            clock=clock,
            bond=self._bond,
        )

    def add(self, data: bytes) -> None:  # what the program does that writes texts
        key = f"{self.root}/parts/{self._ids.ulid(self._clock.now_ms())}.txt"
        self.store.put(key, data)
        self._change(lambda texts: (*texts, (key, len(data))))

    def _change(self, change: Callable[[Texts], Texts]) -> None:
        def apply(version: Version | None) -> bytes | None:
            before = () if version is None else self._decode(version)
            after = change(before)
            return None if after == before and version is not None else json.dumps(after).encode()

        self._index.update(apply, self._clock, self._rng)

    def _decode(self, version: Version) -> Texts:
        try:
            return tuple((text(name), int(size)) for name, size in json.loads(version.data))
        except (ValueError, TypeError) as error:
            raise CorruptObject(self._index.key(version.id), f"does not decode: {error}") from error

    def _read_snapshot(self) -> Texts:
        return self._texts(self._index.confirmed())

    def glance(self) -> tuple[TextLedger | None, Texts]:
        ledger, version = both(self._ledger.read, self._index.latest)
        return self.observers.both(ledger, self._texts(version))

    def known(self) -> tuple[TextLedger | None, Texts]:
        return self.observers.both(self._ledger.known(), self._texts(self._index.known()))

    def _texts(self, version: Version | None) -> Texts:
        if version is None:
            raise Refused(f"{self.url}: there are no texts")
        return self._decode(version)

    def backlog(self, snapshot: Texts, now_ms: int) -> tuple[Backlog, ...]:
        detail = Detail("texts", len(snapshot), "lithify_texts", "Texts of a folder", by_unit=False)
        return (Backlog("all", len(snapshot), 1000, None, (detail,)),)

    def identify(self, spec: Spec) -> TaskIdentity:
        return TaskIdentity("all", "all", frozenset(spec), frozenset(spec))

    def capacity(self, snapshot: Texts) -> Capacity:
        return Capacity()

    def newest_ms(self, snapshot: Texts) -> int:
        return self._clock.now_ms()

    def cost_bytes(self, spec: Spec, snapshot: Texts) -> int:
        return sum(size for name, size in snapshot if name in spec)

    def output_name(self, output: tuple[str, int]) -> str:
        return output[0]

    def output_bytes(self, output: tuple[str, int]) -> int:
        return output[1]

    def priority(self, spec: Spec, snapshot: Texts) -> float:
        return 0.5

    def propose(
        self, snapshot: Texts, ledger: TextLedger, held: Held = NOTHING_HELD, least: int | None = None
    ) -> Plan:
        if len(snapshot) < (least or self._settings.min_files) or ledger.active() or held:
            return Plan(notes=(f"{len(snapshot)} texts are few enough, or are being put together",))
        spec = tuple(name for name, _ in snapshot)
        return Plan((Proposal(spec, 0.5, self.cost_bytes(spec, snapshot), f"{len(spec)} texts"),))

    def save_planner_state(self, plan: Plan, shed: Sequence[Spec], *, is_queue_empty: bool) -> None: ...

    def validate(self, compaction: TextCompaction, snapshot: Texts, ledger: TextLedger) -> str | None:
        names, spec = [name for name, _ in snapshot], list(compaction.spec)
        begin = names.index(spec[0]) if spec[0] in names else 0
        return None if names[begin : begin + len(spec)] == spec else "its texts are no neighbours any more"

    def needs_worker(self, compaction: TextCompaction, snapshot: Texts) -> bool:
        return True

    def prepare(self, compaction: TextCompaction, snapshot: Texts, slots: int = 0) -> RangeJob:
        task = Task(self.store.url, compaction.spec, f"{self.root}/parts/{compaction.id}.txt")
        return RangeJob((RangeWork(None, put_together, task, self.cost_bytes(compaction.spec, snapshot)),))

    def outcome(self, result: tuple[str, int]) -> RangeOutcome:
        return RangeOutcome((result,), result[1], result[1], {}, 0.0, 0)

    def commit(
        self,
        compactions: Sequence[TextCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None] = lambda compaction_id, reason: None,
    ) -> Mapping[Ulid, str | None]:
        verdicts: dict[Ulid, str | None] = {}

        def change(texts: Texts) -> Texts:
            self.check_epoch(epoch)
            for compaction in compactions:
                verdicts[compaction.id] = self.validate(compaction, texts, Ledger())
                if verdicts[compaction.id] is None:
                    begin = [name for name, _ in texts].index(compaction.spec[0])
                    texts = (*texts[:begin], *compaction.outputs, *texts[begin + len(compaction.spec) :])
            return texts

        self._change(change)
        return verdicts

    def was_committed(self, compaction: TextCompaction) -> bool:
        return set(compaction.outputs) <= set(self.snapshot())


class TextKind:
    """Folders of texts."""

    def open(
        self,
        url: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        wrap: Callable[[ObjectStore], ObjectStore],
        waiting: WaitPolicy,
    ) -> TextDataset:
        store, root = open_store(url.replace("texts://", "file://", 1), config.store_options, waiting)
        return TextDataset(url, wrap(store), root, clock, ids, config.of(TextSettings))

    def check_settings(self, config: Config) -> None:
        pass

    def own_place(self, dataset: TextDataset) -> tuple[ObjectStore, str]:
        return dataset.store, dataset.own_folder

    def planner(self, dataset: TextDataset, args: CommandArgs, clock: Clock) -> Planner:
        least = 2 if args.full else None
        return lambda texts, ledger, held=NOTHING_HELD, /: dataset.propose(texts, ledger, held, least)

    def request(self, dataset: TextDataset, args: CommandArgs, clock: Clock) -> Planner:
        return self.planner(dataset, args, clock)

    def show_plan(
        self,
        dataset: TextDataset,
        snapshot: Texts,
        ledger: TextLedger,
        plan: Plan,
        args: CommandArgs,
        clock: Clock,
        details: None,
    ) -> ShownPlan:
        table = Table("Would put together", columns("what"), [(p.reason,) for p in plan.proposals])
        return ShownPlan(Shown({"proposals": len(plan.proposals)}, (table, notes(plan.notes))))

    def look(self, snapshot: Texts) -> int:
        return len(snapshot)

    def show_run(self, run: DatasetRun) -> Shown:
        return Shown({"before": run.before, "after": run.after}, (Line(f"{run.after} texts"),))

    def show_status(self, found: Status) -> Shown:
        return Shown({"texts": len(found.snapshot)}, (Line(f"{len(found.snapshot)} texts"),))

    def show_spec(self, spec: Spec) -> Mapping[str, Any]:
        return {"texts": list(spec)}

    def check(
        self,
        open_dataset: Callable[[], TextDataset],
        find: Callable[[TextDataset], Status],
        config: Config,
        now_ms: int,
    ) -> Iterator[Finding]:
        try:
            found = find(open_dataset())
        except LithifyError as error:
            yield problem("texts", str(error), "write some")
            return
        yield ok("texts", f"there are {len(found.snapshot)}")
        yield from check_compactions(found)

    def collector(
        self, dataset: TextDataset, config: Config, clock: Clock, ids: Ids, observer: Observer
    ) -> PeriodicCollector[str]:
        def collect(due: Due[str]) -> GarbageCollected:
            return GarbageCollected(dataset.url, due.dry_run, {"text": delete_unnamed(dataset)}, {}, 0)

        return PeriodicCollector({"text": CollectionSettings()}, collect, clock, observer)

    def collect(
        self,
        url: str,
        config: Config,
        args: CommandArgs,
        clock: Clock,
        ids: Ids,
        *,
        dry_run: bool,
        min_age_ms: int | None,
    ) -> Shown:
        waiting = command_waiting(url, config)
        dataset = self.open(url, config, clock, ids, lambda store: store, waiting)
        gone = 0 if dry_run else delete_unnamed(dataset)
        return Shown({"deleted": gone}, (Line(f"{gone} deleted"),))

    def maintenance(self, dataset: TextDataset, clock: Clock, ids: Ids) -> Maintenance:
        raise Refused("texts have no history")

    def inspect(self, url: str, config: Config, part: str, args: CommandArgs) -> Shown:
        raise AssertionError


def delete_unnamed(dataset: TextDataset) -> int:
    """Delete every text that the index does not name. No program does that while compactions run."""
    found = {meta.key for meta in dataset.store.list(f"{dataset.root}/parts")}
    unnamed = found - dict(dataset.snapshot()).keys()
    for key in unnamed:
        dataset.store.delete(key)
    return len(unnamed)


KIND: Kind[TextDataset] = TextKind()
