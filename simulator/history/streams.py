"""Readers with Spark Structured Streaming: what they write into their checkpoint folders, and what they read.

1. A reader writes where it begins (`sources/0/offsets/0`), and is registered before that or after.
2. Each batch: it writes up to where it will read (`offsets/N`), reads all snapshots from where it stands up
   to there, and writes that it is done (`commits/N`).
3. Who is started again finds the highest `offsets/N`; where there is no `commits/N` it reads that batch
   again.
"""

from __future__ import annotations

import json

from pyiceberg.table.metadata import TableMetadata

from lithify.base.errors import ObjectNotFound, Refused
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance.expiry_policy import ancestors
from lithify.datasets.iceberg.maintenance.own_state import recorded_in
from lithify.watermarks.model import BlockReason
from simulator.history import rules
from simulator.history.judge import Judge
from simulator.history.people import attempt, insist, now_and_then
from simulator.history.world import Process, World

_OF_SPARK = json.dumps({"batchWatermarkMs": 0})
_BEGINNING = -1
_MAX_CATCH_UP = 50
_LAG = 8
"""So many pauses a reader is away now and then."""


class Stream:
    """One reader, whatever process it runs in."""

    def __init__(self, world: World, judge: Judge, number: int) -> None:
        self._world = world
        self._judge = judge
        self._number = number
        self._incarnation = 0
        self.is_registered = False
        self._is_leaving = False
        self._is_continuous = True
        self._begins_first = True

    @property
    def name(self) -> str:
        return f"stream-{self._number}-{self._incarnation}"

    @property
    def folder(self) -> str:
        return f"checkpoints/{self.name}"

    def run(self, process: Process) -> None:
        """Read batch after batch."""
        pause_ms = self._world.scenario.stream_pause_ms
        if not self._incarnation:
            self._begin_anew(process)
        now_and_then(process, pause_ms, lambda: self._step(process))
        for _ in range(_MAX_CATCH_UP):
            if not self.is_registered or self._is_up_to_date(process):
                break
            attempt(process, lambda: self._step(process))
        else:
            raise self._world.fail(rules.READERS, f"{self.name} never comes to the end of the table")
        if self.is_registered and self._judge.was_removed:
            insist(process, lambda: self._register(process))  # as a person does who hears that it is lost
        if not self.is_registered or self._is_leaving:
            insist(process, lambda: self._give_up(process, process.dataset()))

    def _begin_anew(self, process: Process) -> None:
        """With a checkpoint of its own, as if nothing had been before."""
        self._incarnation += 1
        self.is_registered = False
        self._is_leaving = False
        self._is_continuous = process.rng.random() < 0.7
        self._begins_first = process.rng.random() < 0.6

    def _step(self, process: Process) -> None:
        if process.rng.random() < 0.05:
            process.sleep_ms(_LAG * self._world.scenario.stream_pause_ms)
        if self._is_leaving:  # its registration could not be dropped
            self._give_up(process, process.dataset())
            return
        planned, committed = self._positions(process)
        is_begun = committed is not None
        if not self.is_registered and is_begun == self._begins_first:
            self._register(process)
        elif committed is None:
            self._begin(process)
        else:
            self._batch(process, committed, planned)

    def _is_up_to_date(self, process: Process) -> bool:
        found: list[bool] = []

        def look() -> None:
            head = process.catalog.load_table(()).metadata.current_snapshot_id
            planned, committed = self._positions(process)
            found.append(planned is None and committed == head)

        insist(process, look)
        return found[-1]

    def _register(self, process: Process) -> None:
        dataset = process.dataset()
        name, url = self.name, self.folder
        try:
            standing = dataset.add_reader(url, name, continuous=self._is_continuous)
        except Refused as error:
            process.count("event: reader refused")
            process.log(str(error))
            self._give_up(process, dataset)
            return
        self.is_registered = True
        self._judge.registered(
            name, self._is_continuous, is_begun=standing.reason is not BlockReason.UNPUBLISHED
        )
        process.count("event: reader registered")

    def _give_up(self, process: Process, dataset: IcebergDataset) -> None:
        """Begin anew. What may be left of the registration is dropped."""
        self._is_leaving = True
        self._judge.dropped(self.name)
        there = {reader.name for reader in dataset.readers().list()}
        if self.name in there | recorded_in(dataset.load().metadata).readers:
            dataset.drop_reader(self.name)
        self._begin_anew(process)

    def _begin(self, process: Process) -> None:
        metadata = process.catalog.load_table(()).metadata
        share = process.rng.random()
        if share < 0.1:
            snapshot_id = _BEGINNING
        elif share < 0.5:
            snapshot_id = min(metadata.snapshots, key=lambda s: s.timestamp_ms).snapshot_id
        else:
            snapshot_id = metadata.current_snapshot_id or _BEGINNING
        process.store.put(f"{self.folder}/sources/0/offsets/0", _position(snapshot_id).encode())
        process.count("event: reader begins")

    def _batch(self, process: Process, committed: int, planned: int | None) -> None:
        metadata = process.catalog.load_table(()).metadata
        if planned is None:
            planned = metadata.current_snapshot_id
            if planned is None or planned == committed:
                return
            if _was_rolled_back(metadata, committed):
                process.count("event: reader rolled back")
                self._give_up(process, process.dataset())
                return
            text = "\n".join(["v1", _OF_SPARK, _position(planned)])
            process.store.put(f"{self.folder}/offsets/{self._next}", text.encode())
        else:
            process.count("event: batch read again")
        if not self._read(process, metadata, committed, planned):
            return
        process.store.put(f"{self.folder}/commits/{self._next}", b'v1\n{"nextBatchWatermarkMs":0}')
        process.count("event: batch")

    def _read(self, process: Process, metadata: TableMetadata, committed: int, planned: int) -> bool:
        """Whether all of the batch was there."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        line = ancestors(by_id, planned)
        ids = [snapshot.snapshot_id for snapshot in line]
        batch = line[: ids.index(committed)] if committed in ids else line[:1]
        is_there = planned in by_id and (committed in by_id or committed == _BEGINNING)
        missing = "" if is_there else f"snapshot {planned if planned not in by_id else committed}"
        try:
            for snapshot in [] if missing else batch[:4]:
                for manifest in process.files.manifests_of(snapshot):
                    for entry in process.files.live_entries(manifest):
                        if process.rng.random() < 0.2:
                            process.files.read_data(entry.data_file.file_path)
        except FileNotFoundError as error:
            missing = str(error)
        if not missing:
            return True
        if self.is_registered and self._judge.is_owed(self.name):
            raise self._world.fail(rules.READERS, f"{self.name}, which is registered, misses {missing}")
        process.count("event: reader lost its place")
        self._give_up(process, process.dataset())
        return False

    def _positions(self, process: Process) -> tuple[int | None, int | None]:
        """What is planned and not committed, and where the reader stands; `None` where it has not begun."""
        batches = [int(meta.key.rpartition("/")[2]) for meta in process.store.list(f"{self.folder}/offsets")]
        done = {int(meta.key.rpartition("/")[2]) for meta in process.store.list(f"{self.folder}/commits")}
        last = max(batches, default=-1)
        self._next = last + 1 if last in done or last < 0 else last
        try:
            initial = _offset(process.store.get(f"{self.folder}/sources/0/offsets/0"))
        except ObjectNotFound:
            return None, None
        before = last if last in done else last - 1
        committed = initial if before < 0 else _offset(process.store.get(f"{self.folder}/offsets/{before}"))
        planned = (
            None if last in done or last < 0 else _offset(process.store.get(f"{self.folder}/offsets/{last}"))
        )
        return planned, committed


def _was_rolled_back(metadata: TableMetadata, committed: int) -> bool:
    """Whether the table has gone another way than over the snapshot where a reader stands: there is nothing
    that comes after it."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    line = {snapshot.snapshot_id for snapshot in ancestors(by_id, metadata.current_snapshot_id)}
    return committed in by_id and committed not in line


def _position(snapshot_id: int) -> str:
    return json.dumps({"version": 1, "snapshot_id": snapshot_id, "position": 0, "scan_all_files": False})


def _offset(data: bytes) -> int:
    found: int = json.loads(data.decode().splitlines()[-1])["snapshot_id"]
    return found
