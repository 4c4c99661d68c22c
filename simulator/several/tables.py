"""Iceberg tables whose units are days, of which there is nothing but metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH

from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.datasets.iceberg.model import ChunkSpec, IcebergCompaction, NewFile, TableState, TimeRange
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.store.versions import VersionedFiles
from simulator.several.lake import TIME_FIELD, add_files, bound, data_file
from simulator.several.places import Place, ToyTask, toy
from simulator.several.scenario import MAX_FILES

_FIRST_DAY = datetime(2023, 1, 1, tzinfo=UTC)
_APART = timedelta(days=2)
"""Chunks of neighbouring units do not meet."""
_US_PER_HOUR = 3_600_000_000
_FILE_BYTES, _FILE_ROWS = 1_000, 10
_MIN_FILES = 2
_HALF_URGENT_FILES = 16


class TablePlace(Place):
    """One table."""

    def create(self) -> None:
        """An empty table. Each chunk is a task of its own."""
        plan = self.plan
        properties = {
            "lithify.min-saved-files": "1",
            "lithify.min-new-percent": "0",
            "lithify.small-task-bytes": "1",
            "lithify.max-tasks": str(plan.planner_slots),
            "lithify.max-queued-tasks": str(plan.max_queued),
        }
        self.world.lake.create(self._identifier, properties, self.world.now_ms)

        self._listed: tuple[str, Mapping[str, frozenset[str]]] | None = None

    @property
    def _identifier(self) -> tuple[str, ...]:
        return ("db", self.name)

    def open(self, who: str) -> ToyTable:
        return ToyTable(self, who)

    @cached_property
    def _cache(self) -> ManifestCache:
        return ManifestCache()

    @cached_property
    def _table(self) -> ToyTable:
        assert isinstance(self.truth, ToyTable)
        return self.truth

    @property
    def ledgers(self) -> VersionedFiles:
        return self._table.numbered_files[0]

    @cached_property
    def _ledger_folder(self) -> str:
        return f"{self._table.own_folder}/ledger/"

    def is_ledger(self, key: str) -> bool:
        return key.startswith(self._ledger_folder)

    def is_manifest(self, key: str) -> bool:
        return False

    def decode_ledger(self, data: bytes, key: str) -> AnyLedger:
        return LEDGERS.decode(data, key)

    def unit_name(self, unit: int) -> str:
        return _unit_at(_start_us(unit))

    def add(self, unit: int, count: int) -> None:
        world, table = self.world, self.world.lake.load_table(self._identifier)
        start_us = _start_us(unit)
        files = [
            data_file(
                f"{table.location()}/data/{world.ids.ulid(world.now_ms)}.parquet",
                start_us + _US_PER_HOUR,
                start_us + 2 * _US_PER_HOUR,
                _FILE_BYTES,
                _FILE_ROWS,
            )
            for _ in range(min(count, MAX_FILES - len(self.sources().get(self.unit_name(unit), ()))))
        ]
        if not files:
            return
        add_files(table, files, world.now_ms)
        if world.watcher is not None:
            world.watcher.changed(self.name)

    def sources(self) -> Mapping[str, frozenset[str]]:
        table = self.world.lake.load_table(self._identifier)
        if self._listed is None or self._listed[0] != table.metadata_location:
            listing = read_listing(table, MAIN_BRANCH, self._cache)
            assert listing is not None, "a table begins with a snapshot"
            found: dict[str, list[str]] = {}
            for path, entry in listing.data.items():
                low = entry.data_file.lower_bounds[TIME_FIELD]
                found.setdefault(_unit_at(int.from_bytes(low, "little")), []).append(path)
            many = {unit: frozenset(paths) for unit, paths in found.items() if len(paths) >= _MIN_FILES}
            self._listed = table.metadata_location, many
        return self._listed[1]

    def may_plan(self, unit: str, ledger: AnyLedger) -> bool:
        """Unless the chunk is being compacted."""
        return not any(self.truth.identify(c.spec).unit == unit for c in ledger.active())

    def has_planner_slot(self, ledger: AnyLedger) -> bool:
        return len(ledger.active()) < self.plan.planner_slots

    def priority(self, compaction: AnyCompaction) -> float:
        """The more files are saved the sooner. Its files stay until it is committed."""
        saved = len(compaction.spec.inputs) - 1
        return saved / (saved + _HALF_URGENT_FILES)


def _start_us(unit: int) -> int:
    return round((_FIRST_DAY + unit * _APART).timestamp()) * 1_000_000


def _unit_at(time_us: int) -> str:
    return f"0:@{datetime.fromtimestamp(time_us // 1_000_000, UTC).date().isoformat()}"


class ToyTable(IcebergDataset):
    """A table whose files nobody reads."""

    def __init__(self, place: TablePlace, who: str) -> None:
        world = place.world
        store = place.objects if who == "the judge" else place.store(who)
        super().__init__(
            world.lake,
            TableUrl("lake", ("db", place.name)),
            world.clock,
            world.ids,
            rng=world.rng,
            open_place=lambda table: (store, place.name),
        )
        self._place = place
        self._who = who

    def _read_snapshot(self) -> TableState:
        self._place.check_snapshot(self._who)
        return super()._read_snapshot()

    def prepare(self, compaction: IcebergCompaction, snapshot: TableState, slots: int = 0) -> RangeJob:
        spec, world = compaction.spec, self._place.world
        inputs = set(spec.inputs)
        files = [file for file in snapshot.files if file.id in inputs]
        rows, size_bytes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
        start_us = spec.chunks[0].start_us
        low, high = start_us + _US_PER_HOUR, start_us + 2 * _US_PER_HOUR
        output = NewFile(
            path=f"{self._location}/data/{world.ids.ulid(world.now_ms)}.parquet",
            size_bytes=size_bytes,
            rows=rows,
            sort_order_id=0,
            null_value_counts={TIME_FIELD: 0},
            lower_bounds={TIME_FIELD: bound(low)},
            upper_bounds={TIME_FIELD: bound(high - 1)},
        )
        task = ToyTask(compaction.id, self.identify(spec).unit in self._place.poisoned, (output,))
        return RangeJob((RangeWork((TimeRange(low, high),), toy, task, size_bytes),))

    def save_planner_state(self, plan: Plan, shed: Sequence[ChunkSpec], *, is_queue_empty: bool) -> None:
        if shed:
            self._place.world.count("event: chunk deferred")
        super().save_planner_state(plan, shed, is_queue_empty=is_queue_empty)

    def outcome(self, result: Any) -> RangeOutcome:
        assert isinstance(result, RangeOutcome)
        return result
