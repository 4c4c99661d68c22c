"""Datasets as pictures of the dashboard show them: real ones in a folder, under names that tell nothing of
this machine. The database is being compacted; `Compacting` is that compaction, played by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from lithify.api import wiring
from lithify.api.client import Dataset, settled
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds, Ulid
from lithify.config.model import Config
from lithify.coordination.sidecar import MovementReporter
from lithify.datasets import kind as kinds
from lithify.datasets.slatedb.model import KeyRange
from lithify.protocol import transitions
from lithify.protocol.model import Progress, RangeProgress
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.datasets.kafka.test_commands import make_log
from tests.judge.official import Put, open_db

DATABASE = "s3://example/orders-db"
TABLE = "iceberg://lake/db.events"
LOG = "kafka+s3://example/backup/orders-0"
HOUR_MS = 3_600_000


class Busy(ManualClock):
    """Whoever looks at it is told that a while has passed."""

    def monotonic_s(self) -> float:
        self.advance_s(0.02)
        return super().monotonic_s()


class Posing:
    """All of them, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._paths = {DATABASE: str(folder / "db"), TABLE: TABLE, LOG: f"kafka+file://{folder}/log/orders-0"}
        self._config = settled(None)
        self._of_table = settled({"store_options.uri": f"sqlite:///{folder}/catalog.db"})
        self.urls = list(self._paths)
        _make_database(folder / "db")
        _make_table(folder, self._of_table)
        make_log(folder / "log" / "orders-0")

    def open(self, url: str) -> Dataset:
        """The one that is shown as `url`."""
        config = self._of_table if url == TABLE else self._config
        path = self._paths[url]
        return Dataset(path, config, opened=_called(url, wiring.open_dataset(path, config)))


def _called(url: str, dataset: kinds.DatasetPort) -> kinds.DatasetPort:
    """`dataset` under that name."""

    class Called:
        def __init__(self) -> None:
            self.url = url

        def __getattr__(self, name: str) -> Any:
            return getattr(dataset, name)

    return cast(kinds.DatasetPort, Called())


def _flush(path: Path, times: int, rows: int) -> None:
    with open_db(path) as database:
        for n in range(times):
            database.write_batch([Put(b"user %05d" % (k * 7 + n), b"%064d" % (k * n)) for k in range(rows)])
            database.flush()


def _make_database(path: Path) -> None:
    """Eight commits over as many hours, two runs, and some L0 SSTs that wait."""
    now_ms = SystemClock().now_ms()
    for hour in range(8):
        _flush(path, 2, 300 + 100 * (hour % 3))
        clock = Busy(now_ms - (8 - hour) * HOUR_MS)
        with Dataset(str(path), settled(None), engine=InlineEngine(), clock=clock) as opened:
            opened.compact(full=True, take_over=True)
    _flush(path, 6, 900)


def _make_table(folder: Path, config: Config) -> None:
    """Two weeks of small files, of which the first is compact."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    properties = {"lithify.min-saved-files": "1", "lithify.allowed-lateness-seconds": "0"}
    table = new_table(new_catalog(folder, name="lake"), properties=properties)
    for week, files in ((14, 3), (7, 4)):
        for _ in range(files):
            append(table, make_rows(700, today - timedelta(days=week), timedelta(days=7)))
        if week == 14:
            with Dataset(TABLE, config, engine=InlineEngine()) as opened:
                opened.compact(take_over=True)


class Compacting:
    """A compaction of everything in the database at `path`, under way."""

    def __init__(self, path: Path, ranges: int = 12) -> None:
        self._dataset, self._clock, self._ids = dataset_at(path), SystemClock(), RandomIds()
        self._worker = f"lithify-{self._ids.ulid(self._clock.now_ms())}"
        with Dataset(str(path), settled(None)) as opened:
            (submitted,) = opened.submit(full=True).ids
        self.id = Ulid(submitted)
        self._ranges = [KeyRange(b"user %05d" % n, b"user %05d" % (n + 500)) for n in range(0, 6000, 500)]
        ledger = self._dataset.ledger()
        assert ledger is not None
        compaction = ledger.get(self.id)
        assert compaction is not None
        self._share = self._dataset.cost_bytes(compaction.spec, self._dataset.snapshot()) / ranges
        progress = Progress(tuple(map(RangeProgress, self._ranges[:ranges])), horizon=1)
        self._claimed_ms = self._clock.now_ms()
        self._update(transitions.schedule, self.id)
        self._update(transitions.claim, self.id, self._worker, self._claimed_ms)
        self._update(transitions.heartbeat, self.id, self._worker, self._clock.now_ms(), progress)
        self._reporters: dict[int, MovementReporter] = {}

    def _update(self, transition: Any, *given: Any) -> None:
        self._dataset.update_ledger(lambda latest: transition(latest, *given))

    def move(self, shares: Mapping[int, float]) -> None:
        """So much of these ranges is done, as their tasks report it."""
        for index, share in shares.items():
            if index not in self._reporters:
                to = self._dataset.journal.reporting(self.id, index, self._worker, self._claimed_ms)
                self._reporters[index] = MovementReporter(to, self._dataset.store, self._clock, self._ids)
            moved = round(self._share * share)
            self._reporters[index].report(moved, moved)

    def give_back(self) -> None:
        """Its worker stops."""
        self._update(transitions.release, self.id, self._worker)


@contextmanager
def led(path: Path) -> Iterator[None]:
    """Meanwhile the database there has a coordinator that is alive."""
    with wiring.leadership(dataset_at(path)).acquire(take_over=True):
        yield
