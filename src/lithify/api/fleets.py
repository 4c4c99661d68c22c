"""A fleet for programs: what `lithify fleet` and `lithify queue` do, as calls.

    import lithify

    fleet = lithify.Fleet("s3://bucket/fleet")
    fleet.init()
    fleet.create_queue("small", largest_bytes=1_000_000_000)
    fleet.add("s3://bucket/tenants/*/db", tenant="*")
    print(fleet.status().queues)

All errors are `lithify.LithifyError`s; what is refused is refused before anything is written.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lithify.api import arguments, wiring
from lithify.api.client import CommitRecord, Dataset, Settings, settled
from lithify.api.client import open as open_dataset
from lithify.api.fleet_serving import FleetProcess
from lithify.base import concurrency
from lithify.base.clock import Clock, SystemClock
from lithify.base.defects import contained
from lithify.base.errors import DatasetNotFound, LithifyError, Refused
from lithify.base.events import Observer, ignore
from lithify.base.ids import Ids, RandomIds
from lithify.config.model import Config
from lithify.config.sections import to_text
from lithify.datasets.registry import all_registered, config_type, registered_for
from lithify.datasets.waiting import command_waiting
from lithify.engine.ports import Engine
from lithify.fleet.allowed import check_allowed
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.files import Numbered
from lithify.fleet.catalog.model import Catalog, CatalogTenant, Coordinates, DatasetRule, Queue, check_public
from lithify.fleet.catalog.patterns import normal
from lithify.fleet.checks import check_fleet
from lithify.fleet.discovery import Discovery
from lithify.fleet.fleet_mirror import SharedFleet, watched_here
from lithify.fleet.status import (
    FleetStatus,
    QueueStatus,
    RunningStatus,
    fleet_status,
    running,
    running_in,
)
from lithify.mirror.dataset_mirror import sharing
from lithify.protocol.finding import Finding
from lithify.store.urls import split_scheme

_log = logging.getLogger("lithify")
READS_AT_ONCE = 16
_NO_SETTINGS: Mapping[str, object] = MappingProxyType({})


class Fleet:
    """The fleet at a URL. `clock` and `ids` are for tests."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.url = url = arguments.place("url", url)
        self._config = settled(settings)
        self._clock = clock if clock is not None else SystemClock()
        self._ids = ids if ids is not None else RandomIds()
        waiting = command_waiting(url, self._config)
        self._files = wiring.fleet_files(url, self._config, waiting, self._clock, self._ids)

    def init(self) -> Catalog:
        """Make it: without datasets, and with one queue that takes everything. `Refused` when it is there."""
        return self._files.catalog.create(changes.first_catalog(self._new_id())).catalog

    def catalog(self) -> Numbered:
        """Queues and rules as they are now, and their number."""
        return self._files.catalog.read()

    def at(self, *, version: int | None = None, at_ms: float | None = None) -> Numbered:
        """Queues and rules as they were in a version, or at a time (milliseconds since 1970, by the store's
        clock). `Refused` when that is too old, or not there yet. Those of the last day can be asked for, and
        those that a member or a compaction works with."""
        if (version is None) == (at_ms is None):
            raise Refused("name a version or a time")
        version = arguments.optional(arguments.number, "version", version)
        at_ms = arguments.optional(arguments.real, "at_ms", at_ms)
        number = version if version is not None else self._files.history.number_at(int(at_ms or 0))
        return Numbered(number, self._files.history.at(number))

    def status(self) -> FleetStatus:
        """Who serves it, and what waits in each queue. Writes only what tells the store's time."""
        return fleet_status(self._files, self._clock.now_ms())

    def running(self, *, exact: bool = False) -> tuple[tuple[RunningStatus, ...], Mapping[str, LithifyError]]:
        """What runs, as the workers say every ten seconds; with `exact` as the ledgers of all datasets say
        now, which takes some requests for each. And what could not be asked, by URL. Writes only what tells
        the store's time."""
        if not exact:
            return running(self.status()), {}
        found: dict[str, tuple[RunningStatus, ...]] = {}
        datasets, not_found = self.datasets()
        problems = dict(not_found)

        def ask(url: str, rule: DatasetRule) -> None:
            try:
                with contained(f"asking what runs in {url}"):
                    dataset = wiring.open_dataset(url, self._config_of(rule))
                    found[url] = running_in(url, rule, dataset.ledger())
            except DatasetNotFound:
                pass  # a folder that is none
            except LithifyError as error:
                problems[url] = error

        concurrency.all_of((partial(ask, *one) for one in datasets.items()), READS_AT_ONCE)
        return tuple(one for url in datasets for one in found.get(url, ())), problems

    def check(self) -> list[Finding]:
        """What is wrong with it, and what to do. Writes only what tells the store's time."""
        datasets, problems = self.datasets()
        return list(check_fleet(self.status(), datasets, problems))

    def run(
        self,
        stop: threading.Event,
        *,
        queues: Sequence[str] = (),
        keeps: bool = True,
        works: bool = True,
        exit_when_idle_s: float | None = None,
        spark: Any = None,
        engine: Engine | None = None,
        on_event: Observer | None = None,
        shared: SharedFleet | None = None,
    ) -> None:
        """Serve it until `stop` is set: watch and coordinate its datasets (`keeps`), and work on what its
        queues have (`works`), or on what these `queues` have, until all of them were deleted. Any number of
        processes may, each doing one or both. `exit_when_idle_s` ends it when there was nothing to work on
        for so long. Without a session (`spark`) it starts Spark itself; `engine` is for tests. What the
        keeper reads is noted in `shared`, for a dashboard (`WatchedFleet`). It serves none itself: the
        setting `web.port` is for `lithify fleet run`."""
        if self._config.web.port is not None:
            _log.warning(
                "Fleet.run serves no dashboard, so web.port has no effect: run `lithify web --fleet %s`, or "
                "`lithify fleet run`",
                self.url,
            )
        idle_s = arguments.optional(arguments.real, "exit_when_idle_s", exit_when_idle_s)
        process = FleetProcess(
            self.url,
            self._config,
            queues=arguments.texts("queues", queues),
            keeps=keeps,
            works=works,
            exit_when_idle_s=idle_s,
            spark=spark,
            engine=engine,
            on_event=on_event if on_event is not None else ignore,
            shared=shared,
        )
        process.run(stop)

    # Datasets

    def add(
        self,
        *patterns: str | os.PathLike[str],
        queue: str | None = None,
        tenant: str | None = None,
        coordinates: Coordinates | str = Coordinates.FLEET,
        settings: Mapping[str, object] = _NO_SETTINGS,
    ) -> Catalog:
        """Add datasets, by URL or by pattern (`s3://bucket/tenants/*/db`). A pattern that is there is treated
        from now on as said here. `queue` takes all their work whatever its size, `tenant` says for whom they
        are (`*`: what the first `*` of the pattern stands for), `settings` are for them alone."""
        if not patterns:
            raise Refused("name at least one dataset or pattern")
        given, who = _as_texts(arguments.mapping("settings", settings)), _coordinates(coordinates)
        queue = arguments.optional(arguments.text, "queue", queue)
        tenant = arguments.optional(arguments.text, "tenant", tenant)
        rules = [DatasetRule(absolute(pattern), who, queue, tenant, given) for pattern in patterns]
        for rule in rules:
            check_public(rule)
            _check_names(rule)
            _check_values(rule)
            check_allowed(rule, self.url, self._config)
        return self._changed(partial(_added, rules=rules))

    def remove(self, *patterns: str | os.PathLike[str]) -> Catalog:
        """Take datasets away, by what they were added with. What is under way goes on."""
        wanted = tuple(normal(absolute(pattern)) for pattern in patterns)
        known = {rule.pattern for rule in self.catalog().catalog.rules}
        missing = [pattern for pattern in wanted if pattern not in known]
        if missing:
            raise Refused(f"{missing[0]}: no rule has this pattern; `lithify fleet list` shows them")
        return self._changed(lambda catalog: changes.remove_rules(catalog, wanted))

    def datasets(self) -> tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]]:
        """The datasets that it has now, by URL, and what could not be looked up, by pattern. Folders that are
        no datasets may be among them."""
        discovery = Discovery(self._found, self._clock)
        found = discovery.datasets(self.catalog().catalog)
        return found, discovery.problems

    def open(self, url: str | os.PathLike[str]) -> Dataset:
        """One of its datasets, with the settings of its rule (`lithify.open`). `Refused` for any other."""
        url = arguments.place("url", url)
        rule = self.catalog().catalog.rule_for(url)
        if rule is None:
            raise Refused(f"{url}: is no dataset of this fleet; add it with `lithify fleet add`")
        return open_dataset(url, settings=self._config_of(rule), clock=self._clock, ids=self._ids)

    def wake(self, *urls: str | os.PathLike[str]) -> None:
        """Have these looked at now. `Refused` for what is no dataset of the fleet."""
        catalog, wanted = self.catalog().catalog, tuple(map(absolute, urls))
        for url in wanted:
            if catalog.rule_for(url) is None:
                raise Refused(f"{url}: is no dataset of this fleet; add it with `lithify fleet add`")
        for url in wanted:
            self._files.wakes.wake(url)

    # Tenants

    def set_tenant(self, name: str, **attributes: Any) -> CatalogTenant:
        """Change how the work of a tenant is treated; attributes are those of `CatalogTenant`. It need have
        no datasets yet."""
        name = arguments.text("name", name)
        catalog = self._changed(lambda catalog: changes.set_tenant(catalog, name, **attributes))
        return next(tenant for tenant in catalog.tenants if tenant.name == name)

    def remove_tenant(self, name: str) -> None:
        """Treat it as everybody else. Its datasets stay. `Refused` when it is treated so already."""
        if all(tenant.name != name for tenant in self.catalog().catalog.tenants):
            raise Refused(
                f"tenant {name!r} has no weight or limit of its own; `lithify fleet list` shows all"
            )
        self._changed(lambda catalog: changes.remove_tenant(catalog, name))

    # Queues

    def queues(self) -> tuple[QueueStatus, ...]:
        """All queues and what they have, by size."""
        return self.status().queues

    def queue(self, name: str) -> QueueStatus:
        """One queue and what it has."""
        found = self.status()
        found.catalog.catalog.queue(name)
        return found.queue(name)

    def create_queue(self, name: str, *, largest_bytes: int, **attributes: Any) -> Queue:
        """Make a queue for work that costs less; attributes are those of `Queue`. One that has a name that
        was deleted is another queue."""
        name = arguments.text("name", name)
        queue = changes.with_attributes(Queue(name, self._new_id(), largest_bytes), attributes)
        return self._changed(lambda catalog: changes.create_queue(catalog, queue)).queue(name)

    def set_queue(self, name: str, **attributes: Any) -> Queue:
        """Change attributes of a queue."""
        return self._change_queue(name, partial(changes.set_queue, **attributes))

    def pause_queue(self, name: str) -> Queue:
        """Admit and claim nothing of it until it is resumed."""
        return self._change_queue(name, changes.pause_queue)

    def resume_queue(self, name: str) -> Queue:
        """Go on."""
        return self._change_queue(name, changes.resume_queue)

    def drain_queue(self, name: str) -> Queue:
        """Admit nothing more to it; what was admitted is worked off, the rest goes to the next one."""
        return self._change_queue(name, changes.drain_queue)

    def delete_queue(self, name: str) -> None:
        """Take it away: its workers end, and what waits goes to the next one."""
        queue_id = self.catalog().catalog.queue(name).id
        self._changed(lambda catalog: changes.delete_queue(catalog, queue_id))

    def _change_queue(self, name: str, change: Callable[[Catalog, str], Catalog]) -> Queue:
        """By the id that the name has now."""
        queue_id = self.catalog().catalog.queue(name).id
        changed = self._changed(lambda catalog: change(catalog, queue_id)).with_id(queue_id)
        assert changed is not None, "it would have been refused"
        return changed

    def _changed(self, change: changes.CatalogChange) -> Catalog:
        return self._files.catalog.update(change).catalog

    def _new_id(self) -> str:
        return self._ids.ulid(self._clock.now_ms())

    def _found(self, rule: DatasetRule) -> Iterable[str]:
        return wiring.find_datasets(rule, self._config_of(rule))

    def _config_of(self, rule: DatasetRule) -> Config:
        """The settings for its datasets."""
        return wiring.config_of(rule, self._config, self.url)


class ShownFleet(Fleet):
    """The fleet as a dashboard reads it: whatever its rules say, a store is waited for only for a moment."""

    def __init__(self, url: str, *, settings: Settings | None = None) -> None:
        super().__init__(url, settings=wiring.patient(settled(settings)))

    def _config_of(self, rule: DatasetRule) -> Config:
        return wiring.patient(super()._config_of(rule))


class WatchedFleet(ShownFleet):
    """The same, as a keeper in this process reads it anyway: to look at it takes no request, but of datasets
    that another keeper watches."""

    def __init__(self, url: str, shared: SharedFleet, *, settings: Settings | None = None) -> None:
        super().__init__(url, settings=settings)
        self.shared = shared

    def datasets(self) -> tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]]:
        return self.shared.datasets()

    def status(self) -> FleetStatus:
        return self.shared.status()

    def catalog(self) -> Numbered:
        return self.status().catalog

    def watched(self, url: str) -> Dataset:
        """One of its datasets, to look at."""
        shared, config = self.shared, self._config_at(url)
        dataset = shared.opened(url)
        if dataset is None:
            dataset = wiring.open_dataset(url, config)
        records = wiring.commit_records(dataset)

        def commits(most: int | None, since_ms: int) -> tuple[CommitRecord, ...]:
            return (shared.of(url) if shared.has(url) else records).newest(most, since_ms)

        here = watched_here(dataset, url, shared)
        return Dataset(url, config, opened=here, commits=commits)

    def acted_on(self, url: str) -> Dataset:
        """The same, to do something with. What that changes is known to who watches at once."""
        if not self.shared.has(url):
            return Dataset(url, self._config_at(url))
        noted = partial(sharing, shared=self.shared.of(url), clock=self._clock)
        return Dataset(url, self._config_at(url), through=noted)

    def _config_at(self, url: str) -> Config:
        rule = self.shared.datasets()[0].get(url)
        if rule is None:
            raise Refused(f"{url}: is no dataset of this fleet (any more)")
        return self._config_of(rule)


def _added(catalog: Catalog, rules: Iterable[DatasetRule]) -> Catalog:
    return changes.add_rules(catalog, rules)


def _as_texts(settings: Mapping[str, object]) -> Mapping[str, str]:
    """The settings as a rule has them. `Refused` for what is neither text nor a number."""
    found = {}
    for name, value in settings.items():
        try:
            found[name] = to_text(value)
        except ValueError as error:
            raise Refused(f"setting {name}: {error}; nothing was written") from None
    return MappingProxyType(found)


def _check_names(rule: DatasetRule) -> None:
    """`Refused` when one of its settings has no effect on the datasets that it names."""
    own = registered_for(rule.pattern)
    others = {kind.load_settings().NAME: kind for kind in all_registered()}
    del others[own.load_settings().NAME]
    for name in rule.settings:
        other = others.get(name.partition(".")[0])
        if other is not None:
            raise Refused(
                f"rule {rule.pattern}: {name} is a setting of {other.plural}, "
                f"and the rule is for {own.plural}"
            )


def _check_values(rule: DatasetRule) -> None:
    """`Refused` when no dataset could be opened with its settings, or one of them does nothing."""
    try:
        registered_for(rule.pattern).load().check_settings(wiring.with_settings_of(rule, config_type()()))
    except Refused as error:
        raise Refused(f"rule {rule.pattern}: {error}") from None


def _coordinates(value: Coordinates | str) -> Coordinates:
    try:
        return Coordinates(value)
    except ValueError:
        known = ", ".join(member.value for member in Coordinates)
        raise Refused(f"{value!r} is none of {known}: who coordinates the datasets") from None


def absolute(url: str | os.PathLike[str]) -> str:
    """A URL as every process would read it: a relative path is one from the root."""
    url = arguments.place("url", url)
    scheme, _ = split_scheme(url)
    return url if scheme is not None else str(Path(url).absolute())
