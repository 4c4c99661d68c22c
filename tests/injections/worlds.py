"""Sound datasets, fleets and groups, and every command, service and page that meets them.

Each is made once, where its cases are played, since paths are in it; each case gets a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import lithify
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.testing.engine import InlineEngine
from lithify.web.dashboard import TABS
from tests.datasets.iceberg.tables import age_files
from tests.datasets.kafka.test_commands import make_log
from tests.fuzz import databases, tables
from tests.fuzz.running import run
from tests.web.dashboards import page_of, shown

DATASET = "DATASET"
FLEET = "FLEET"
PATTERN = "PATTERN"
GROUP = "GROUP"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a world, for one case."""

    root: Path
    """Everything below may be changed."""
    names: dict[str, str]
    """What stands for `DATASET`, `FLEET`, `PATTERN` and `GROUP` in commands."""
    options: tuple[str, ...] = ()
    """Of every command."""


class World(Protocol):
    """One kind of what commands meet."""

    @property
    def name(self) -> str: ...

    @property
    def commands(self) -> Sequence[str]:
        """Each with `DATASET`, `FLEET`, `PATTERN` or `GROUP` for a URL."""
        ...

    def make(self, place: Path) -> None:
        """Make it in a folder."""
        ...

    def of(self, place: Path) -> Copy:
        """What was made, or copied, there."""
        ...

    def pages(self, copy: Copy) -> Iterator[tuple[str, str]]:
        """All pages of a dashboard over it, and their texts."""
        ...


def made(world: World, prepared: Path, place: Path) -> None:
    """Make a world in `place` and keep it in `prepared`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    world.make(place)
    shutil.move(place, prepared)


def copied(world: World, prepared: Path, place: Path) -> Copy:
    """A copy in `place`, for one case."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(prepared, place)
    return world.of(place)


_READING = (
    "plan DATASET",
    "plan --json DATASET",
    "status DATASET",
    "status --json DATASET",
    "history DATASET",
    "history --json DATASET",
    "doctor --read-only DATASET",
    "doctor --read-only --json DATASET",
    "gc DATASET",
)
_SERVING = (
    "compact --take-over DATASET",
    "compact --take-over --json DATASET",
    "coordinator --take-over DATASET",
    "worker DATASET",
    "run --take-over DATASET",
    "run --take-over --metrics-port 0 DATASET",
    "gc --delete DATASET",
    "wait --timeout 5s DATASET",
)


def _pages_of(urls: Sequence[str], options: dict[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    def opened(url: str) -> lithify.api.client.Dataset:
        return lithify.open(url, settings=options or {}, engine=InlineEngine())

    with shown(urls, open_dataset=opened) as client:
        paths = ["/", *(page_of(url, tab) for url in urls for tab in TABS)]
        for path in paths:
            yield path, client.get(path).text


@dataclass(frozen=True)
class Databases:
    """A database of SlateDB in the middle of its compactions."""

    name: str = "databases"
    commands: Sequence[str] = (
        *_READING,
        *_SERVING,
        "inspect manifest DATASET",
        "inspect manifest --json DATASET",
        "inspect compactions DATASET",
        "submit --full DATASET",
    )

    def make(self, place: Path) -> None:
        warm_up()
        databases.make_busy(place / "db")

    def of(self, place: Path) -> Copy:
        return Copy(place / "db", {DATASET: str(place / "db")})

    def pages(self, copy: Copy) -> Iterator[tuple[str, str]]:
        return _pages_of([copy.names[DATASET]])


@dataclass(frozen=True)
class Tables:
    """An Iceberg table in the middle of its compactions, with a hold, a reader and an expiry."""

    name: str = "tables"
    commands: Sequence[str] = (
        *_READING,
        *_SERVING,
        "expire --dry-run DATASET",
        "expire DATASET",
        "maintain --skip data DATASET",
        "rewrite-manifests DATASET",
        "rewrite-equality-deletes DATASET",
        "rewrite-position-delete-files DATASET",
        "remove-orphans DATASET",
        "remove-orphans --delete DATASET",
        "hold --list DATASET",
        "readers list DATASET",
        "submit --full DATASET",
    )

    def make(self, place: Path) -> None:
        catalog = tables._new_catalog(place / "db")
        tables.make_busy(catalog)
        catalog.engine.dispose()
        copy = self.of(place)
        for command in ("hold --lease 6h --name training DATASET", "expire --retain-last 2 DATASET"):
            done = run([*command.replace(DATASET, copy.names[DATASET]).split(), *copy.options])
            assert done.exit_code == 0, done.output
        age_files(place / "db" / "lake")

    def of(self, place: Path) -> Copy:
        option = f"uri={tables._uri(place / 'db')}"
        return Copy(place / "db" / "lake", {DATASET: "iceberg://fuzz/db.events"}, ("--store-option", option))

    def pages(self, copy: Copy) -> Iterator[tuple[str, str]]:
        name, _, uri = copy.options[1].partition("=")
        return _pages_of([copy.names[DATASET]], {"store_options": {name: uri}})


@dataclass(frozen=True)
class Logs:
    """A keyed log that is a member of a group."""

    name: str = "logs"
    commands: Sequence[str] = (
        *_READING,
        *_SERVING,
        "inspect segments DATASET",
        "group show GROUP",
        "group show --json GROUP",
        "group join --at 0=5 GROUP other",
        "group leave GROUP eu",
    )

    def make(self, place: Path) -> None:
        make_log(place / "it" / "orders-0")
        (place / "it" / "orders-0" / "partition.metadata").write_text(
            "version: 0\ntopic_id: rS8mXWvTQmKzGqvrCHSjFA\n"
        )
        copy = self.of(place)
        assert run(["group", "init", "--members", "eu,other", copy.names[GROUP]]).exit_code == 0
        done = run(["compact", *copy.options, copy.names[DATASET]])
        assert done.exit_code == 0, done.output

    def of(self, place: Path) -> Copy:
        group = str(place / "it" / "group")
        options = ("--set", f"kafka.group={group}", "--set", "kafka.member=eu")
        return Copy(place / "it", {DATASET: f"kafka+file://{place}/it/orders-0", GROUP: group}, options)

    def pages(self, copy: Copy) -> Iterator[tuple[str, str]]:
        given = dict(option.split("=", 1) for option in copy.options[1::2])
        return _pages_of([copy.names[DATASET]], given)


@dataclass(frozen=True)
class Fleets:
    """A fleet of two databases that has been served."""

    name: str = "fleets"
    commands: Sequence[str] = (
        "fleet list FLEET",
        "fleet list --json FLEET",
        "fleet status FLEET",
        "fleet status --json FLEET",
        "fleet workers FLEET",
        "fleet running FLEET",
        "fleet running --exact FLEET",
        "fleet doctor FLEET",
        "fleet tenant list FLEET",
        "fleet run FLEET",
        "fleet coordinator FLEET",
        "fleet worker FLEET",
        "fleet wake FLEET DATASET",
        "fleet take-over FLEET PATTERN",
        "queue list FLEET",
        "queue list --json FLEET",
        "queue info FLEET default",
        "queue create --largest 1GB FLEET other",
    )

    def make(self, place: Path) -> None:
        copy = self.of(place)
        fleet = copy.names[FLEET]
        for name in ("red", "blue"):
            databases.make_fresh(place / "it" / "tenants" / name / "db", None)
        for command in (
            ["fleet", "init", fleet],
            ["fleet", "add", "--tenant", "*", fleet, str(place / "it" / "tenants" / "*" / "db")],
            ["queue", "create", "--largest", "1MB", fleet, "small"],
            ["fleet", "tenant", "set", "--weight", "2", fleet, "red"],
            ["fleet", "run", fleet],
        ):
            done = run(command)
            assert done.exit_code == 0, done.output

    def of(self, place: Path) -> Copy:
        root = place / "it"
        return Copy(
            root / "fleet",
            {
                FLEET: str(root / "fleet"),
                DATASET: str(root / "tenants" / "red" / "db"),
                PATTERN: str(root / "tenants" / "*" / "db"),
            },
        )

    def pages(self, copy: Copy) -> Iterator[tuple[str, str]]:
        fleet = lithify.Fleet(copy.names[FLEET])
        with _fleet_shown(fleet) as client:
            for path in ("/", "/fleet", "/queues/default", "/queues/small", page_of(copy.names[DATASET])):
                yield path, client.get(path).text


@contextmanager
def _fleet_shown(fleet: lithify.Fleet) -> Iterator[Any]:
    with shown([], fleet=fleet) as client:
        yield client


WORLDS: dict[str, World] = {world.name: world for world in (Databases(), Tables(), Logs(), Fleets())}
