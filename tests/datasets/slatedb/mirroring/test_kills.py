"""The death of a mirror, or of a restore, between any two writes: no point is ever incomplete, the next run
goes on, and what is restored is a state that the writer has seen."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lithify.base.errors import Refused
from lithify.datasets.slatedb.mirroring.state import KeepPolicy
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import READS, Call
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from tests.compacting import compact, dataset_at
from tests.datasets.slatedb.mirroring.drill import ALL, Drill, rows_of
from tests.judge.client import copy_database
from tests.judge.official import Error, open_db, open_reader

NEWEST = KeepPolicy(keep_ms=0)
ROWS = {b"k%d" % n: b"v" * 100 for n in range(6)}
ENDS = [StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER]


class Dying:
    """Kills the process at its write of this number; counts writes."""

    def __init__(self, at: int, how: StoreFault = StoreFault.CRASH_BEFORE) -> None:
        self.at, self.how, self.writes = at, how, 0

    def __call__(self, store: ObjectStore) -> FaultyStore:
        return FaultyStore(store, self._decide)

    def _decide(self, number: int, call: Call) -> StoreFault | None:
        if call.method in READS:
            return None
        self.writes += 1
        return self.how if self.writes == self.at else None


def writes_of(run: Callable[[Dying], object]) -> int:
    counting = Dying(0)
    run(counting)
    return counting.writes


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that was compacted and written since, as the death of its writer leaves it."""
    folder = tmp_path_factory.mktemp("before")
    with open_db(folder / "db") as database:
        for key, value in ROWS.items():
            database.put(key, value)
            database.flush()
        compact(dataset_at(folder / "db"))
        database.put(b"last", b"row")
        database.flush_wal()
        return copy_database(folder / "db", folder / "open")


@pytest.fixture
def drill(before: Path, tmp_path: Path) -> Callable[[], Drill]:
    """Makes copies of the database, none of them mirrored."""
    numbers = itertools.count()

    def made() -> Drill:
        one = Drill(tmp_path / str(next(numbers)))
        copy_database(before, one.database)
        return one

    return made


def mirrored_once(one: Drill, dying: Dying) -> None:
    one.session(dying).take_point(NEWEST)


def check_kill(one: Drill, at: int, how: StoreFault) -> None:
    with suppress(Crash):
        mirrored_once(one, Dying(at, how))
    assert one.problems() == []
    one.session().take_point(NEWEST)
    assert one.problems() == []
    state = one.state()
    assert len(state.points) == 1
    assert state.doomed.is_empty
    assert state.copying == ()
    assert set(one.mirror().ssts()) == set(one.mirror().copied(state.points[0].manifest_id).ssts)


def test_the_first_point_killed_between_any_two_writes(drill: Callable[[], Drill]) -> None:
    writes = writes_of(lambda dying: mirrored_once(drill(), dying))
    assert writes > 8
    for at in range(1, writes + 1):
        one = drill()
        check_kill(one, at, ENDS[at % 2])
        if at % 5 == 0:
            assert one.rows() == {**ROWS, b"last": b"row"}


def prepared(make: Callable[[], Drill]) -> Drill:
    """A mirror whose next point brings new SSTs and frees old ones."""
    one = make()
    one.session().take_point(ALL)
    with open_db(one.database) as database:
        database.put(b"last", b"row 2")
        database.flush()
        compact(dataset_at(one.database))
        database.put(b"more", b"row 3")
        database.flush_wal()
    return one


@pytest.mark.parametrize(
    "third", [pytest.param(n, marks=() if n == 0 else pytest.mark.whole) for n in range(3)]
)
def test_a_later_point_killed_between_any_two_writes(drill: Callable[[], Drill], third: int) -> None:
    writes = writes_of(lambda dying: mirrored_once(prepared(drill), dying))
    assert writes > 12
    for at in range(1 + third, writes + 1, 3):
        for how in ENDS:
            one = prepared(drill)
            check_kill(one, at, how)
            if at % 4 == 1:
                assert one.rows() == {**ROWS, b"last": b"row 2", b"more": b"row 3"}


def test_a_restore_killed_between_any_two_writes(drill: Callable[[], Drill]) -> None:
    one = prepared(drill)
    one.session().take_point(ALL)
    writes = writes_of(lambda dying: one.restore(wrap=dying, to="counted"))
    assert writes >= 4
    for at in range(1, writes + 1):
        place = f"place-{at}"
        with pytest.raises(Crash):
            one.restore(wrap=Dying(at, ENDS[at % 2]), to=place)
        with pytest.raises(Refused, match=r"another point began|already has a database"):
            one.restore(one.state().points[0].at_ms, to=place)
        with pytest.raises(Error), open_reader(one.folder / place):
            pass
        one.restore(to=place)
        assert rows_of(one.folder / place) == {**ROWS, b"last": b"row 2", b"more": b"row 3"}


LIVE = 30


@contextmanager
def writer(drill: Drill, acknowledged: list[int]) -> Iterator[None]:
    """A client that writes row n and deletes row n - LIVE, and flushes now and then."""
    ending = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with open_db(drill.database) as database:
                n = 0
                while not ending.is_set():
                    database.put(b"%08d" % n, b"%d" % n)
                    if n >= LIVE:
                        database.delete(b"%08d" % (n - LIVE))
                    database.flush_wal()
                    acknowledged.append(n)
                    if n % 20 == 19:
                        database.flush()
                    n += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while not acknowledged and thread.is_alive():
            thread.join(0.01)
        yield
    finally:
        ending.set()
        thread.join()
    assert failures == [], failures


def check_prefix(rows: dict[bytes, bytes], least: int, most: int) -> None:
    """The rows are those after some n writes, at least `least` and at most `most`; the delete that follows
    the last write may be missing."""
    numbers = sorted(map(int, rows))
    last = numbers[-1]
    assert numbers == list(range(numbers[0], last + 1))
    assert len(numbers) in (min(last + 1, LIVE), min(last + 1, LIVE + 1))
    assert all(rows[b"%08d" % n] == b"%d" % n for n in numbers)
    assert least <= last <= most


def test_a_writer_writes_all_the_while(tmp_path: Path) -> None:
    drill, acknowledged = Drill(tmp_path), list[int]()
    seen: list[tuple[int, int, int]] = []
    with writer(drill, acknowledged):
        for round_number in range(8):
            with suppress(Crash):
                drill.session(Dying(3 * round_number + 2)).take_point(ALL)
            if round_number % 3 == 2:
                compact(dataset_at(drill.database))
            least = acknowledged[-1]
            report = drill.session().take_point(ALL)
            seen.append((report.point.at_ms, least, acknowledged[-1] + 1))
    assert drill.problems() == []
    for at_ms, least, most in seen[::2]:
        check_prefix(drill.rows(at_ms), least, most)
    times = [point.at_ms for point in drill.state().points]
    assert times == sorted(times)
