"""The Python API for a fleet, with the operations of `lithify fleet` and `lithify queue`.

    import lithify

    fleet = lithify.Fleet("s3://bucket/fleet")
    fleet.init()
    fleet.create_queue("small", largest_bytes=1_000_000_000)
    fleet.add("s3://bucket/tenants/*/db", tenant="*")
    print(fleet.status().queues)

All errors are `lithify.LithifyError`s. `Refused` is raised before anything is written.
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
from lithify.fleet.fleet_mirror import SharedFleet
from lithify.fleet.status import (
    FleetStatus,
    QueueStatus,
    RunningStatus,
    fleet_status,
    running,
    running_in,
)
from lithify.protocol.finding import Finding
from lithify.store.urls import split_scheme

_log = logging.getLogger("lithify")
READS_AT_ONCE = 16
_NO_SETTINGS: Mapping[str, object] = MappingProxyType({})


class Fleet:
    """The fleet whose folder is at `url`: its catalog of datasets, queues and tenants, and its status.
    `settings` are as in `lithify.open`; `clock` and `ids` are for tests."""

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
        """Create the fleet, without datasets and with one queue that takes all work; return its catalog.
        Raise `Refused` if it exists."""
        return self._files.catalog.create(changes.first_catalog(self._new_id())).catalog

    def catalog(self) -> Numbered:
        """Return the current catalog (queues, rules, tenants) with its version number."""
        return self._files.catalog.read()

    def at(self, *, version: int | None = None, at_ms: float | None = None) -> Numbered:
        """Return the catalog of a version, or of a time in milliseconds since 1970 by the store's clock. Give
        exactly one of both. Raise `Refused` if it is too old or does not exist yet. Versions of the last day,
        and those that a member or a compaction still uses, are kept."""
        if (version is None) == (at_ms is None):
            raise Refused("give either a version or a time")
        if version is not None:
            number = arguments.number("version", version)
        else:
            number = self._files.history.number_at(arguments.real("at_ms", at_ms))
        return Numbered(number, self._files.history.at(number))

    def status(self) -> FleetStatus:
        """Return the fleet's members, queues and pending tasks. Writes only an object that shows the store's
        time."""
        return fleet_status(self._files, self._clock.now_ms())

    def running(self, *, exact: bool = False) -> tuple[tuple[RunningStatus, ...], Mapping[str, LithifyError]]:
        """Return the running compactions, and the errors of datasets that could not be read, by URL. The
        compactions are those of the workers' last heartbeats, about ten seconds old; with `exact`, those in
        the ledgers of all datasets now, which costs some requests per dataset. Writes only an object that
        shows the store's time."""
        if not exact:
            return running(self.status()), {}
        found: dict[str, tuple[RunningStatus, ...]] = {}
        datasets, not_found = self.datasets()
        problems = dict(not_found)

        def ask(url: str, rule: DatasetRule) -> None:
            try:
                with contained(f"reading the running compactions of {url}"):
                    dataset = wiring.open_dataset(url, self._config_of(rule))
                    found[url] = running_in(url, rule, dataset.ledger())
            except DatasetNotFound:
                pass  # a folder that is not a dataset
            except LithifyError as error:
                problems[url] = error

        concurrency.all_of((partial(ask, *one) for one in datasets.items()), READS_AT_ONCE)
        return tuple(one for url in datasets for one in found.get(url, ())), problems

    def check(self) -> list[Finding]:
        """Return the fleet's problems, each with a remedy. Writes only an object that shows the store's
        time."""
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
        """Serve the fleet until `stop` is set: coordinate its datasets (`keeps`), execute compactions
        (`works`), or both. Any number of processes may serve a fleet, each in one or both roles.

        `queues` limits the work to these queues; the call returns when all of them are deleted. It also
        returns after `exit_when_idle_s` seconds without work. `spark` is your own session; without one,
        Lithify starts Spark. `on_event` is called with each event. `engine` is for tests. For a dashboard
        (`WatchedFleet`), the coordinator's reads are recorded in `shared`.

        Raise `Refused` if there is no such fleet or queue, and `EngineDown` if Spark cannot run. The setting
        `web.port` has no effect here; it is for `lithify fleet run`.
        """
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

    def add(
        self,
        *patterns: str | os.PathLike[str],
        queue: str | None = None,
        tenant: str | None = None,
        coordinates: Coordinates | str = Coordinates.FLEET,
        settings: Mapping[str, object] = _NO_SETTINGS,
        take_over: bool = False,
    ) -> Catalog:
        """Add datasets, by URL or by pattern (`s3://bucket/tenants/*/db`), and return the new catalog. An
        existing rule with the same pattern is replaced.

        `queue` names the queue that takes all their work regardless of its cost. `tenant` names their owner;
        `*` in it is replaced by the text that the first `*` of the pattern matches. `coordinates` says which
        system coordinates them. `settings` apply to these datasets only. `take_over` is as in the method of
        that name. Raise `Refused` for a setting that has no effect on them or is not allowed here.
        """
        _check_named(patterns)
        given, who = _as_texts(arguments.mapping("settings", settings)), _coordinates(coordinates)
        queue = arguments.optional(arguments.text, "queue", queue)
        tenant = arguments.optional(arguments.text, "tenant", tenant)
        asked_ms = self._store_ms() if take_over else None
        rules = [DatasetRule(absolute(pattern), who, queue, tenant, given, asked_ms) for pattern in patterns]
        for rule in rules:
            check_public(rule)
            _check_names(rule)
            _check_values(rule)
            check_allowed(rule, self.url, self._config)
        return self._changed(partial(_added, rules=rules))

    def take_over(self, *patterns: str | os.PathLike[str]) -> Catalog:
        """Let the fleet take the datasets of these rules, now and later ones, from coordinators of other
        systems, and return the new catalog. Each dataset is taken once, and only after its wanted work has
        stood for a minute without a sign of life, or for a quarter of an hour if a compaction is active. A
        SlateDB process that was opened with `compactor_options` is fenced. Raise `Refused` if there is no
        such rule, or one whose datasets their owner coordinates."""
        _check_named(patterns)
        wanted, asked_ms = tuple(map(absolute, patterns)), self._store_ms()
        return self._changed(lambda catalog: changes.take_over(catalog, wanted, asked_ms))

    def _store_ms(self) -> int:
        """Return the time by the store's clock."""
        now_ms = self._files.store_time.now_ms()
        if now_ms is None:
            raise Refused(f"{self.url}: the store does not tell its time, which a takeover needs")
        return now_ms

    def remove(self, *patterns: str | os.PathLike[str]) -> Catalog:
        """Remove rules by the patterns they were added with, and return the new catalog. Running compactions
        continue. Raise `Refused` if there is no such rule, or none is named."""
        _check_named(patterns)
        wanted = tuple(normal(absolute(pattern)) for pattern in patterns)
        known = {rule.pattern for rule in self.catalog().catalog.rules}
        missing = [pattern for pattern in wanted if pattern not in known]
        if missing:
            raise Refused(f"{missing[0]}: no rule has this pattern; `lithify fleet list` shows them")
        return self._changed(lambda catalog: changes.remove_rules(catalog, wanted))

    def datasets(self) -> tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]]:
        """Return the datasets that the rules match now, with their rules, by URL, and the errors of lookups,
        by pattern. Some may turn out to be folders that are not datasets."""
        discovery = Discovery(self._found, self._clock)
        found = discovery.datasets(self.catalog().catalog)
        return found, discovery.problems

    def open(self, url: str | os.PathLike[str]) -> Dataset:
        """Open one of the fleet's datasets, with the settings of its rule, as `lithify.open` does. Raise
        `Refused` for others."""
        url = arguments.place("url", url)
        rule = self.catalog().catalog.rule_for(url)
        if rule is None:
            raise Refused(f"{url}: is not a dataset of this fleet; add it with `lithify fleet add`")
        return open_dataset(url, settings=self._config_of(rule), clock=self._clock, ids=self._ids)

    def wake(self, *urls: str | os.PathLike[str]) -> None:
        """Ask the fleet's coordinators to poll these datasets now. Raise `Refused` if one does not belong to
        the fleet, or none is named."""
        _check_named(urls)
        catalog, wanted = self.catalog().catalog, tuple(map(absolute, urls))
        for url in wanted:
            if catalog.rule_for(url) is None:
                raise Refused(f"{url}: is not a dataset of this fleet; add it with `lithify fleet add`")
        for url in wanted:
            self._files.wakes.wake(url)

    def set_tenant(self, name: str, **attributes: Any) -> CatalogTenant:
        """Set attributes of a tenant (those of `CatalogTenant`: `weight`, `most_running`) and return it. The
        tenant may have no datasets yet."""
        name = arguments.text("name", name)
        catalog = self._changed(lambda catalog: changes.set_tenant(catalog, name, **attributes))
        return next(tenant for tenant in catalog.tenants if tenant.name == name)

    def remove_tenant(self, name: str) -> None:
        """Remove a tenant's own weight and limits; the defaults apply to it again. Its datasets are kept.
        Raise `Refused` if it has none of its own."""
        if all(tenant.name != name for tenant in self.catalog().catalog.tenants):
            raise Refused(
                f"tenant {name!r} has no weight or limit; `lithify fleet tenant list` shows those that have"
            )
        self._changed(lambda catalog: changes.remove_tenant(catalog, name))

    def queues(self) -> tuple[QueueStatus, ...]:
        """Return all queues with their pending and running work, smallest size limit first."""
        return self.status().queues

    def queue(self, name: str) -> QueueStatus:
        """Return a queue with its pending and running work. Raise `Refused` if there is none of that name."""
        found = self.status()
        found.catalog.catalog.queue(name)
        return found.queue(name)

    def create_queue(self, name: str, *, largest_bytes: int, **attributes: Any) -> Queue:
        """Create a queue for compactions that cost less than `largest_bytes`, and return it; the other
        attributes are those of `Queue`. A queue that reuses the name of a deleted one has a new id. Raise
        `Refused` if the name is taken."""
        name = arguments.text("name", name)
        queue = changes.with_attributes(Queue(name, self._new_id(), largest_bytes), attributes)
        return self._changed(lambda catalog: changes.create_queue(catalog, queue)).queue(name)

    def set_queue(self, name: str, **attributes: Any) -> Queue:
        """Set attributes of a queue, except its name and state, and return it."""
        return self._change_queue(name, partial(changes.set_queue, **attributes))

    def pause_queue(self, name: str) -> Queue:
        """Stop admission and claims until `resume_queue`. Running compactions continue."""
        return self._change_queue(name, changes.pause_queue)

    def resume_queue(self, name: str) -> Queue:
        """Resume a queue that is paused or drains."""
        return self._change_queue(name, changes.resume_queue)

    def drain_queue(self, name: str) -> Queue:
        """Stop admission; admitted tasks are still executed, other tasks go to the next larger queue."""
        return self._change_queue(name, changes.drain_queue)

    def delete_queue(self, name: str) -> None:
        """Delete a queue: its workers end, and its waiting tasks go to the next larger queue. Raise `Refused`
        while a rule names it, and for the queue without a size limit."""
        queue_id = self.catalog().catalog.queue(name).id
        self._changed(lambda catalog: changes.delete_queue(catalog, queue_id))

    def _change_queue(self, name: str, change: Callable[[Catalog, str], Catalog]) -> Queue:
        """Change the queue that has this name now. It is identified by its id, so a new queue of that name is
        not changed."""
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
        return wiring.config_of(rule, self._config, self.url)


class ShownFleet(Fleet):
    """The fleet as a dashboard reads it: it waits for stores only briefly, whatever the rules say."""

    def __init__(self, url: str, *, settings: Settings | None = None) -> None:
        super().__init__(url, settings=wiring.patient(settled(settings)))

    def _config_of(self, rule: DatasetRule) -> Config:
        return wiring.patient(super()._config_of(rule))


class WatchedFleet(ShownFleet):
    """The fleet as read by a fleet coordinator in this process. Viewing it costs no request, except for
    datasets that another coordinator owns."""

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
        """Open one of its datasets, for viewing only."""
        shared, config = self.shared, self._config_at(url)
        dataset = shared.opened(url)
        if dataset is None:
            dataset = wiring.open_dataset(url, config)
        records = wiring.commit_records(dataset)

        def commits(most: int | None, since_ms: int) -> tuple[CommitRecord, ...]:
            return (shared.of(url) if shared.has(url) else records).newest(most, since_ms)

        return Dataset(url, config, opened=dataset, state_of=partial(shared.state, url), commits=commits)

    def acted_on(self, url: str) -> Dataset:
        """Open one of its datasets for changes, which viewers see at once."""
        if not self.shared.has(url):
            return Dataset(url, self._config_at(url))
        return Dataset(url, self._config_at(url), observer=self.shared.of(url))

    def _config_at(self, url: str) -> Config:
        rule = self.shared.datasets()[0].get(url)
        if rule is None:
            raise Refused(f"{url}: is not a dataset of this fleet (any more)")
        return self._config_of(rule)


def _check_named(places: Sequence[object]) -> None:
    if not places:
        raise Refused("name at least one dataset or pattern")


def _added(catalog: Catalog, rules: Iterable[DatasetRule]) -> Catalog:
    return changes.add_rules(catalog, rules)


def _as_texts(settings: Mapping[str, object]) -> Mapping[str, str]:
    """Return the settings as texts, as a rule stores them. Raise `Refused` for a value that is neither text
    nor a number."""
    found = {}
    for name, value in settings.items():
        try:
            found[name] = to_text(value)
        except ValueError as error:
            raise Refused(f"setting {name}: {error}; nothing was written") from None
    return MappingProxyType(found)


def _check_names(rule: DatasetRule) -> None:
    """Raise `Refused` if a setting has no effect on the rule's datasets."""
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
    """Raise `Refused` if the rule's settings are invalid for its datasets."""
    try:
        registered_for(rule.pattern).load().check_settings(wiring.with_settings_of(rule, config_type()()))
    except Refused as error:
        raise Refused(f"rule {rule.pattern}: {error}") from None


def _coordinates(value: Coordinates | str) -> Coordinates:
    try:
        return Coordinates(value)
    except ValueError:
        known = ", ".join(member.value for member in Coordinates)
        raise Refused(f"the coordinator of the datasets is {value!r}; it must be one of {known}") from None


def absolute(url: str | os.PathLike[str]) -> str:
    """Return the URL as every process reads it: a relative path becomes absolute."""
    url = arguments.place("url", url)
    scheme, _ = split_scheme(url)
    return url if scheme is not None else str(Path(url).absolute())
