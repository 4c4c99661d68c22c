"""Every setting, given in a file, in the environment and as an option, reaches the object it is for."""

from __future__ import annotations

import functools
import json
import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import lithify
from lithify.api import wiring
from lithify.base import events
from lithify.cli.options.common import COMMON_OPTIONS
from lithify.cli.options.of_kinds import Given
from lithify.cli.options.settings import load_settings, set_up_logs_of
from lithify.config.model import Config, options
from lithify.config.sections import CollectionSettings
from lithify.datasets.iceberg.kind import KIND
from lithify.datasets.registry import all_registered, config_type
from lithify.datasets.slatedb.model import Codec
from lithify.datasets.slatedb.options import SlateOptions
from lithify.datasets.waiting import service_waiting
from lithify.fleet.catalog.model import DatasetRule
from lithify.service.options import CoordinatorOptions, WorkerOptions
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import with_wait
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke_json, logging_as_before
from tests.datasets.iceberg.tables import new_catalog, new_table
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import a_bucket
from tests.fuzz.running import run
from tests.judge.official import Put, open_db

TABLE = "iceberg://lake/db.events"
LOG = "kafka+memory://arrival/orders-0"


def keep_all(row: object) -> None:
    """A compaction filter, to be named."""


RUNS = 50


class Made(Exception):
    """What something would have been made with."""

    def __init__(self, *arguments: object, **named: object) -> None:
        self.arguments, self.named = arguments, named


def raise_made(*arguments: object, **named: object) -> None:
    raise Made(*arguments, **named)


@dataclass
class Built:
    """What the settings are built into."""

    config: Config
    folder: Path
    patch: pytest.MonkeyPatch

    def dataset(self, url: str | None = None) -> Any:
        return wiring.open_dataset(url or str(self.folder / "db"), self.config)

    def coordinator(self) -> CoordinatorOptions:
        return wiring.coordinator(self.dataset(), self.config, events.ignore).options

    def worker(self) -> WorkerOptions:
        engine = InlineEngine()
        room = wiring.room(engine, self.config)
        return wiring.worker(self.dataset(), engine, self.config, events.ignore, room=room).room.options

    def slatedb(self) -> SlateOptions:
        return cast(SlateOptions, self.dataset().options)

    def garbage(self, kind: str, url: str | None = None) -> Any:
        collector: Any = wiring.collector(self.dataset(url), self.config, events.ignore)
        return next(how for of, how in collector.settings.items() if getattr(of, "name", of) == kind)

    def log(self) -> Any:
        return self.dataset(LOG)

    def copied_topic(self) -> Any:
        bucket = a_bucket([logs.data(0, ("a", "1"))])
        return self.dataset(f"kafka+{bucket.store.url}/{bucket.topic}")

    def table(self) -> Any:
        return self.dataset(TABLE)

    def policy(self) -> Any:
        return self.table().snapshot().policy

    def has_state_in(self, root: str, folder: str) -> bool:
        store, own_folder = KIND.own_place(self.table())
        return store.url == root and own_folder.startswith(f"{folder}/")

    def spark(self) -> Made:
        self.patch.setattr("lithify.engine.spark.SparkEngine", Made)
        return cast(Made, wiring.spark_engine(self.config, []))

    def endpoint(self) -> tuple[object, ...]:
        self.patch.setattr("lithify.observe.endpoint.make_server", raise_made)
        url = str(self.folder / "db")
        with pytest.raises(Made) as made:
            lithify.Service([url], settings=self.config, works=False).run(threading.Event())
        return made.value.arguments

    def waits(self) -> tuple[float, ...]:
        """How long stores are waited for: by a command, its tasks and their files, and tasks of a service."""
        table = self.dataset(TABLE)
        of_files = table.load().io.properties["lithify.requests"].waiting
        self.patch.setattr("lithify.datasets.slatedb.kind.open_store", raise_made)
        with pytest.raises(Made) as made:
            self.dataset("s3://bucket/db")
        of_command = cast(WaitPolicy, made.value.arguments[2])
        assert with_wait({}, of_command)["retry_timeout_s"] == f"{of_command.tasks_max_s:g}"
        of_service = service_waiting("", self.config, events.ignore, lambda: False)
        return of_command.max_s, of_command.tasks_max_s, of_files.tasks_max_s, of_service.tasks_max_s

    def store_options(self) -> Mapping[str, str]:
        self.patch.setattr("lithify.datasets.slatedb.kind.open_store", raise_made)
        self.patch.setattr("lithify.datasets.iceberg.kind.open_catalog", raise_made)
        found = []
        for url in ("s3://bucket/db", TABLE):
            with pytest.raises(Made) as made:
                self.dataset(url)
            found.append(made.value.arguments[1])
        assert found[0] == found[1]
        return cast(Mapping[str, str], found[0])


Find = Callable[[Built], Any]


@dataclass(frozen=True)
class Case:
    given: Any
    """No default."""
    arrives: Any
    find: Find
    key: str = ""
    """Of a table that users fill: what of it is given."""


FILTER = f"{__name__}:keep_all"
CASES: dict[str, Case] = {
    "store_options": Case(
        "eu-central-9", "eu-central-9", lambda b: b.store_options()["aws_region"], "aws_region"
    ),
    "service.worker_heartbeat_timeout": Case(
        "7s", 7000, lambda b: b.coordinator().worker_heartbeat_timeout_ms
    ),
    "service.max_attempts": Case(7, 7, lambda b: b.coordinator().max_attempts),
    "service.embedded_worker": Case(False, False, lambda b: b.config.service.embedded_worker),
    "service.collect_garbage": Case(
        False, None, lambda b: wiring.collector(b.dataset(), b.config, events.ignore)
    ),
    "service.keep_history": Case(
        "7d", 7 * 86_400_000, lambda b: cast(Any, wiring.recorder(b.config, ManualClock()))._keep_ms
    ),
    "service.store_wait": Case("forever", (math.inf,) * 4, lambda b: b.waits()),
    "service.worker.max_concurrent_compactions": Case(7, 7, lambda b: b.worker().max_concurrent_compactions),
    "service.worker.compactions_poll_interval": Case("7s", 7000, lambda b: b.worker().spare_claim_delay_ms),
    "service.worker.heartbeat_interval": Case("7s", 7000, lambda b: b.worker().heartbeat_interval_ms),
    "service.worker.heartbeat_min_interval": Case("7s", 7000, lambda b: b.worker().heartbeat_min_interval_ms),
    "service.worker.heartbeat_bytes": Case(7, 7, lambda b: b.worker().heartbeat_bytes),
    "service.worker.range_start_timeout": Case("7s", 7000, lambda b: b.worker().range_start_timeout_ms),
    "service.worker.first_retry_pause": Case("7s", 7000, lambda b: b.worker().first_retry_pause_ms),
    "service.worker.max_retry_pause": Case("7s", 7000, lambda b: b.worker().max_retry_pause_ms),
    "spark.master": Case("local[7]", "local[7]", lambda b: b.spark().arguments[0]),
    "spark.conf": Case(
        "7g", {"spark.executor.memory": "7g"}, lambda b: b.spark().named["conf"], "spark.executor.memory"
    ),
    "metrics.port": Case(0, 0, lambda b: b.endpoint()[1]),
    "slatedb.l0_max_ssts": Case(7, 7, lambda b: b.slatedb().l0_max_ssts),
    "slatedb.max_concurrent_compactions": Case(7, 7, lambda b: b.slatedb().policy.max_concurrent_compactions),
    "slatedb.scheduler_options": Case(
        3, 3, lambda b: b.slatedb().policy.min_compaction_sources, "min_compaction_sources"
    ),
    "slatedb.enable_trivial_move": Case(True, True, lambda b: b.slatedb().enable_trivial_move),
    "slatedb.checkpoint_lifetime": Case("7s", 7, lambda b: b.slatedb().checkpoint_lifetime_s),
    "slatedb.max_sst_size": Case(7, 7, lambda b: b.slatedb().max_sst_size),
    "slatedb.min_filter_keys": Case(7, 7, lambda b: b.slatedb().min_filter_keys),
    "slatedb.filter_policies": Case("_bf", ("_bf",), lambda b: b.slatedb().filter_rules.names),
    "slatedb.filter_bits_per_key": Case(7, 7, lambda b: b.slatedb().filter_rules.bits_per_key),
    "slatedb.filter_prefixes": Case(
        7, 7, lambda b: b.slatedb().filter_rules.prefix_lens["fixed-7"], "fixed-7"
    ),
    "slatedb.compression_codec": Case("zstd", Codec.ZSTD, lambda b: b.slatedb().compression),
    "slatedb.block_size": Case(8192, 8192, lambda b: b.slatedb().block_size),
    "slatedb.merge_operator": Case(FILTER, FILTER, lambda b: b.slatedb().merge_operator),
    "slatedb.compaction_filter": Case(FILTER, FILTER, lambda b: b.slatedb().compaction_filter),
    **{
        f"slatedb.segments.{name}": Case(given, arrives, find)
        for name, given, arrives, find in (
            ("pattern", "{u64:ms}", "{u64:ms}", lambda b: segments(b).pattern),
            ("granularity", "hour", "hour", lambda b: segments(b).calendar.granularity.value),
            ("time_zone", "Europe/Berlin", "Europe/Berlin", lambda b: segments(b).calendar.zone),
            ("skip_from_now", "7s", 7_000_000, lambda b: segments(b).skip_clock_us),
            ("skip_from_latest", "7s", 7_000_000, lambda b: segments(b).skip_newest_us),
        )
    },
    "iceberg.properties": Case("hour", "hour", lambda b: b.policy().granularity, "granularity"),
    "iceberg.unrelated_tables": Case(
        "broken.t, other.*", ("broken.t", "other.*"), lambda b: b.table()._apart
    ),
    "iceberg.state_location": Case(
        "memory://states/of", True, lambda b: b.has_state_in("memory://states", "of")
    ),
}
CASES |= {
    "kafka.output": Case("memory://other/out", "out", lambda b: b.log().output_root),
    "kafka.min_cleanable_dirty_ratio": Case(0.25, 0.25, lambda b: b.log().policy().min_cleanable_dirty_ratio),
    "kafka.min_compaction_lag": Case("7s", 7000, lambda b: b.log().terms().min_compaction_lag_ms),
    "kafka.max_compaction_lag": Case("7s", 7000, lambda b: b.log().policy().max_compaction_lag_ms),
    "kafka.delete_retention": Case("7s", 7000, lambda b: b.log().terms().delete_retention_ms),
    "kafka.keep_unkeyed": Case(True, True, lambda b: b.log().terms().keep_unkeyed),
    "kafka.cleanup_policy": Case("compact", True, lambda b: b.log()._layout._is_compacted),
    "kafka.newest_segment": Case(True, True, lambda b: b.log().terms().newest_segment),
    "kafka.segment_bytes": Case(7, 7, lambda b: b.log().terms().segment_bytes),
    "kafka.producer_id_expiration": Case("7s", 7000, lambda b: b.log().terms().producer_id_expiration_ms),
    "kafka.quiet_period": Case("7s", 7000, lambda b: b.log().terms().quiet_ms),
    "kafka.copy_to": Case("orders.v2", "orders.v2", lambda b: b.copied_topic().snapshot().name),
    "kafka.live": Case(True, True, lambda b: b.copied_topic().takes_cuts),
    "kafka.broker_build": Case(
        "0.7.0-pre.2", "0.7.0-pre.2", lambda b: b.copied_topic()._settings.broker_build
    ),
    "kafka.group": Case("memory://groups/orders", "orders/marks", lambda b: b.log().member._files._marks),
    "kafka.member": Case("eu", "eu", lambda b: b.log().member.name),
}
COLLECTED = {
    "slatedb.garbage_collector_options.manifest_options": ("MANIFEST", None),
    "slatedb.garbage_collector_options.compactions_options": ("COMPACTIONS", None),
    "slatedb.garbage_collector_options.compacted_options": ("COMPACTED", None),
    "slatedb.garbage_collector_options.wal_options": ("WAL", None),
    "slatedb.garbage_collector_options.wal_fence_options": ("WAL_FENCE", None),
    "slatedb.garbage_collector_options.detach_options": ("DETACH", None),
    "slatedb.garbage_collector_options.lithify_options": ("PROGRESS", None),
    "iceberg.garbage.data_files": ("DATA", TABLE),
    "iceberg.garbage.manifests": ("MANIFEST", TABLE),
    "iceberg.garbage.ledger_versions": ("VERSION", TABLE),
    "iceberg.garbage.lithify": ("NOTE", TABLE),
    "kafka.garbage": ("all", LOG),
}
"""Sections that say how garbage is collected: the kind of garbage, and of which dataset."""
TOGETHER = {
    "kafka.group": "kafka.member=eu",
    "kafka.member": "kafka.group=memory://groups/orders",
    "kafka.live": "kafka.broker_build=0.7.0",
    "kafka.broker_build": "kafka.live=true",
}
"""The one is nothing without the other."""
ELSEWHERE = {
    "service.poll_interval",
    "service.commit_compacted_interval",
    "log.format",
    "log.level",
    "metrics.host",
    "web.port",
    "web.host",
    "web.names",
    "web.token",
    "fleet.places",
    "fleet.rules_may_set",
}
"""Below: they need another one, or take effect in a process as a whole. Loops get their section itself. Those
of the dashboard: tests/web; of fleets: tests/fleet/test_hostile_catalogs.py."""


def segments(built: Built) -> Any:
    found = built.slatedb().segment_times
    assert found is not None
    return found


def test_no_setting_is_left_out() -> None:
    collected = {f"{section}.{name}" for section in COLLECTED for name in CollectionSettings.model_fields}
    assert set(CASES) | collected | ELSEWHERE == {option.name for option in options(config_type())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database and a table."""
    folder = tmp_path_factory.mktemp("arrival")
    with open_db(folder / "db") as database:
        database.write_batch([Put(b"k", b"v")])
        database.flush()
    new_table(new_catalog(folder, name="lake"))
    return folder


@pytest.mark.parametrize("way", ["file", "environment", "option"])
@pytest.mark.parametrize("name", CASES)
def test_a_setting_arrives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    case = CASES[name]
    text = str(case.given).lower() if isinstance(case.given, bool) else str(case.given)
    sets = []
    if name.startswith("slatedb.segments.") and not name.endswith("pattern"):
        sets.append("slatedb.segments.pattern=%Y")
    if name in TOGETHER:
        sets.append(TOGETHER[name])
    if name.startswith("iceberg.") or name == "service.store_wait":
        sets.append(f"store_options.uri=sqlite:///{folder}/catalog.db")
    file = None
    if way == "file":
        file = tmp_path / "lithify.toml"
        section, own = (name, json.dumps(case.key)) if case.key else name.rsplit(".", 1)
        file.write_text(f"[{section}]\n{own} = {json.dumps(case.given)}\n")
    elif way == "environment":
        value = json.dumps({case.key: case.given}) if case.key else text
        monkeypatch.setenv("LITHIFY_" + name.replace(".", "__").upper(), value)
    else:
        sets.append(f"{name}.{case.key}={text}" if case.key else f"{name}={text}")
    found = case.find(Built(load_settings(file, sets).config, folder, monkeypatch))
    assert found == case.arrives
    assert type(found) is type(case.arrives)


@pytest.mark.parametrize("section", COLLECTED)
def test_a_section_reaches_its_kind_of_garbage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    kind, url = COLLECTED[section]
    sets = [f"store_options.uri=sqlite:///{folder}/catalog.db"] if url == TABLE else []
    config = load_settings(None, [*sets, f"{section}.interval=7s"]).config
    found = Built(config, folder, monkeypatch).garbage(kind, url)
    assert found == functools.reduce(getattr, section.split("."), config)
    assert found.interval == timedelta(seconds=7)


PLACES = {"s3://b#aws_region": "of a bucket", "iceberg://lake#uri": "sqlite:///none", "aws_region": "for all"}
IN_PLACES = Config(store_options=PLACES)


@pytest.mark.parametrize(
    ("opener", "do", "arrives"),
    [
        (
            "lithify.store.urls.open_store",
            lambda: lithify.Fleet("s3://b/fleet", settings=IN_PLACES),
            "of a bucket",
        ),
        (
            "lithify.store.urls.open_store",
            lambda: lithify.Group("s3://b/group", settings=IN_PLACES),
            "of a bucket",
        ),
        ("lithify.datasets.discovery.open_store", lambda: found_by("s3://b/*"), "of a bucket"),
        ("lithify.datasets.discovery.open_store", lambda: found_by("kafka+s3://b/*"), "of a bucket"),
        (
            "lithify.datasets.iceberg.discovery.open_catalog",
            lambda: found_by("iceberg://lake/db.*"),
            "for all",
        ),
        ("lithify.datasets.kafka.places.open_store", lambda: opened("kafka+s3://b/log"), "of a bucket"),
        ("lithify.datasets.slatedb.kind.open_store", lambda: opened("s3://b/db"), "of a bucket"),
    ],
)
def test_an_option_of_a_place_arrives(
    monkeypatch: pytest.MonkeyPatch, opener: str, do: Callable[[], object], arrives: str
) -> None:
    monkeypatch.setattr(opener, raise_made)
    with pytest.raises(Made) as made:
        do()
    given = cast(Mapping[str, str], made.value.arguments[1])
    assert given["aws_region"] == arrives
    assert ("uri" in given) == (arrives == "for all"), "a catalog has the options of its own place"
    assert not [name for name in given if "#" in name]


def found_by(pattern: str) -> object:
    return wiring.find_datasets(DatasetRule(pattern), IN_PLACES)


def opened(url: str) -> object:
    return wiring.open_dataset(url, IN_PLACES)


def test_where_metrics_are_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_settings(None, ["metrics.host=::1", "metrics.port=7"]).config
    assert Built(config, folder, monkeypatch).endpoint()[:2] == ("::1", 7)


def test_how_logs_look(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_before():
        set_up_logs_of(load_settings(None, ["log.format=json", "log.level=info"]), "warning")
        logging.getLogger("lithify").info("here")
    assert json.loads(capsys.readouterr().err)["message"] == "here"
    with logging_as_before():
        set_up_logs_of(load_settings(None, ["log.level=error"]), "warning")
        logging.getLogger("lithify").warning("here")
    assert capsys.readouterr().err == ""


def test_a_run_without_a_worker(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "other"
    with open_db(path) as database:
        for n in range(8):
            database.write_batch([Put(b"k", b"%d" % n)])
            database.flush()

    def states_after_a_run(works: str) -> set[str]:
        assert run(["run", "--set", f"service.embedded_worker={works}", str(path)]).exit_code == 0
        return {c["state"] for c in invoke_json("status", path)["compactions"]}

    assert states_after_a_run("false") in ({"submitted"}, {"scheduled"})
    # A run is a few rounds, and the first of them may wait for a compiler.
    assert any(not states_after_a_run("true") for _ in range(RUNS))


def test_options_of_commands_stand_for_settings() -> None:
    """Each with a flag of its own, and the origin says so."""
    names = {option.name for option in options(config_type())}
    assert {option.setting for option in COMMON_OPTIONS if option.setting is not None} <= names
    for kind in all_registered():
        for option in kind.load_options().options:
            if option.setting is not None:
                assert option.setting in names
                case = CASES[option.setting]
                value = [f"{case.key}={case.given}"] if option.type == list[str] else case.given
                given = Given({option.name: value}, [(kind, option)])
                setting = f"{option.setting}.{case.key}" if case.key else option.setting
                assert load_settings(None, None, given.settings).origins == {setting: option.flag}
