"""A database that is deleted, made anew at its URL, or restored from a backup while a fleet watches,
coordinates and works on it. Written and read by the official client, on a manual clock, without Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lithify.api import wiring
from lithify.base import events
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.kind import SlateKind
from lithify.fleet.catalog.changes import first_catalog, set_queue
from lithify.fleet.catalog.model import DatasetRule
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.wrapped import Call, WrappedStore
from tests.fleet.playing import playing
from tests.fleet.test_official import Fleet, fill, rows
from tests.judge.official import Put, open_db
from tests.parts import in_parts

NAME = "db"
BOUND_S = 240
"""Within so much it is found out, and what there is to do is done."""


def put_back(template: Path, path: Path) -> None:
    """As it is when it is written again: with times of now."""
    shutil.copytree(template, path, copy_function=shutil.copyfile, dirs_exist_ok=True)


@dataclass
class Templates:
    """Databases as they may lie at the URL, one after the other."""

    old: Path
    backup: Path
    """Of the old one, before its last flushes."""
    short: Path
    """Another one, with fewer versions."""
    long: Path
    """Another one, with more."""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    folder = tmp_path_factory.mktemp("templates")
    old = fill(folder / "old", 4)
    backup = folder / "backup"
    put_back(old, backup)
    fill(old, 3)
    long = fill(folder / "long", 5)
    for _ in range(20):
        with open_db(long):  # which is a version of the manifest, or more
            pass
    return Templates(old, backup, fill(folder / "short", 4), long)


Change = Callable[[Path, Templates], Path | None]
"""What is done to the database, and to which one its rows are then equal; `None` for nothing that is lost."""


def _remove(path: Path, *but: str) -> None:
    for child in path.iterdir() if path.exists() else ():
        if child.name not in but:
            shutil.rmtree(child)


def made_anew(path: Path, templates: Templates) -> Path:
    _remove(path)
    put_back(templates.short, path)
    return templates.short


def made_anew_and_longer(path: Path, templates: Templates) -> Path:
    _remove(path)
    put_back(templates.long, path)
    return templates.long


def made_anew_beside_what_lithify_left(path: Path, templates: Templates) -> Path:
    """By a program that knows only what is of SlateDB."""
    _remove(path, "lithify")
    put_back(templates.short, path)
    return templates.short


def restored(path: Path, templates: Templates) -> Path:
    _remove(path)
    put_back(templates.backup, path)
    return templates.backup


def without_lithify(path: Path, templates: Templates) -> None:
    """Another program takes what it does not know for garbage."""
    shutil.rmtree(path / "lithify", ignore_errors=True)


CHANGES: tuple[Change, ...] = (
    made_anew,
    made_anew_and_longer,
    made_anew_beside_what_lithify_left,
    restored,
    without_lithify,
)
changes = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


class Watching(Fleet):
    """Calls `event` once, before the request of that number."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked_for = 0
        self.at: int | None = None
        self.event: Callable[[], object] = lambda: None

    def open(self, url: str, rule: DatasetRule) -> SlateDataset:
        self.opened[url] += 1
        config = wiring.config_of(rule, self.config, str(self.folder))
        return SlateKind().open(url, config, self.clock, self.ids, self._wrapped, WaitPolicy())

    def _wrapped(self, store: ObjectStore) -> ObjectStore:
        return _Told(store, self)

    def asked(self) -> None:
        self.asked_for += 1
        if self.asked_for == self.at:
            self.event()


@dataclass
class _Told(WrappedStore):
    inner: ObjectStore
    of: Watching = field(repr=False)

    def around(self, call: Call, action: Callable[[], object]) -> object:  # type: ignore[override]
        self.of.asked()
        return action()


@pytest.fixture
def fleet(tmp_path: Path, templates: Templates) -> Iterator[Watching]:
    with playing(Watching(tmp_path)) as made:
        put_back(templates.old, tmp_path / NAME)
        yield made


def is_done(fleet: Watching, path: Path, wanted: Path | None, before: dict[bytes, bytes]) -> bool:
    """Everything is compacted, and all rows are there."""
    return fleet.is_compacted(path) and rows(path) == (before if wanted is None else rows(wanted))


def check_writer(path: Path) -> None:
    """The official client goes on with it."""
    with open_db(path) as database:
        database.write_batch([Put(b"new", b"row")])
        database.flush()
    with open_db(path) as database:
        assert database.get(b"new") == b"row"


@changes
@pytest.mark.parametrize("second", [0, 1, 2, 3, 5, 8, 13, 30])
def test_in_any_second_of_a_fleets_work(
    fleet: Watching, templates: Templates, change: Change, second: int
) -> None:
    path, before = fleet.folder / NAME, rows(templates.old)
    fleet.coordinator()
    fleet.worker()
    fleet.run(second)
    wanted = change(path, templates)
    fleet.until(lambda: is_done(fleet, path, wanted, before), BOUND_S)
    fleet.run(60)
    assert is_done(fleet, path, wanted, before)
    check_writer(path)


@changes
@pytest.mark.parametrize("second", [2, 4, 6])
def test_while_a_worker_is_busy_with_it(
    fleet: Watching, templates: Templates, change: Change, second: int
) -> None:
    path, before = fleet.folder / NAME, rows(templates.old)
    fleet.coordinator()
    worker = fleet.worker(stepped=True)
    fleet.until(lambda: bool(fleet.seen(events.Claimed)), 60)
    fleet.run(second)
    wanted = change(path, templates)
    fleet.run(second)
    fleet.engines[worker.name].run_all()

    def go_on() -> bool:
        fleet.engines[worker.name].run_all()
        return is_done(fleet, path, wanted, before)

    fleet.until(go_on, BOUND_S)
    check_writer(path)


@changes
@in_parts(8)
def test_at_any_request(fleet: Watching, templates: Templates, change: Change, part: int) -> None:
    """Whatever was written between two looks is taken back."""
    path, before = fleet.folder / NAME, rows(templates.old)
    fleet.coordinator()
    fleet.worker()
    fleet.run(40)
    assert fleet.is_compacted(path)
    requests = fleet.asked_for
    for at in range(part + 1, requests + 1, 8):
        found = Watching(fleet.folder)
        with playing(found):
            _remove(path)
            put_back(templates.old, path)
            found.at = at
            wanted: list[Path | None] = [templates.old]
            found.event = lambda: wanted.append(change(path, templates))  # noqa: B023
            found.coordinator()
            found.worker()
            found.run(40)
            last = wanted[-1] if len(wanted) > 1 else None
            found.until(lambda: is_done(found, path, last, before), BOUND_S)  # noqa: B023


def test_what_is_gone_for_long_is_found_when_it_is_there_again(fleet: Watching, templates: Templates) -> None:
    path = fleet.folder / NAME
    fleet.add(NAME)  # by its URL: no listing shows that it is there again
    fleet.coordinator()
    fleet.worker()
    fleet.run(60)
    assert fleet.is_compacted(path)
    _remove(path)
    fleet.run(600)
    put_back(templates.short, path)
    fleet.until(lambda: is_done(fleet, path, templates.short, {}), 120)


def test_another_coordinators_memory_of_it_plays_no_part(fleet: Watching, templates: Templates) -> None:
    path = fleet.folder / NAME
    first = fleet.coordinator()
    fleet.worker()
    fleet.run(90)
    fleet.coordinators.remove(first)  # it is killed
    made_anew(path, templates)
    fleet.coordinator()
    fleet.until(lambda: is_done(fleet, path, templates.short, {}), BOUND_S)


def test_it_is_told_once(fleet: Watching, templates: Templates) -> None:
    path = fleet.folder / NAME
    fleet.coordinator()
    fleet.run(60)
    made_anew(path, templates)
    fleet.run(300)
    (event,) = [event for event in fleet.events if isinstance(event, events.MadeAnew)]
    assert event.dataset.endswith(str(path))
    assert "created again or restored" in event.reason


@pytest.mark.parametrize("versions", [2, 20])
def test_the_fleets_own_catalog_is_made_anew(fleet: Watching, versions: int) -> None:
    """Members follow the one that is there, whatever its number is."""
    path = fleet.folder / NAME
    coordinator = fleet.coordinator()
    fleet.worker()
    fleet.run(60)
    for meta in list(fleet.memory.list("fleet")):
        if meta.key.startswith("fleet/catalog"):
            fleet.memory.delete(meta.key)
    fleet.run(30)
    fleet.process().catalog.create(first_catalog("Q1"))
    for weight in range(2, versions):
        fleet.change(lambda catalog: set_queue(catalog, "Q1", weight=weight))  # noqa: B023
    fleet.add("*")
    fill(path, 4)
    before, commits = rows(path), fleet.times(events.Committed, path)
    fleet.until(lambda: fleet.times(events.Committed, path) > commits, BOUND_S)
    assert rows(path) == before
    assert coordinator._catalog.now.number == versions
