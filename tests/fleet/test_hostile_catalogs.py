"""The folder of a fleet was written by somebody else: its catalog, the boards, what members say."""

from __future__ import annotations

import json
import sys
import threading
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import MappingProxyType

import pytest
from pyiceberg.utils.config import Config as CatalogConfig

import lithify
from lithify.api import wiring
from lithify.base import events
from lithify.config.model import Config, options
from lithify.datasets.registry import config_type
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule
from tests.client.test_service import Place, Watch, until
from tests.fleet.playing import play
from tests.fleet.test_run import served
from tests.judge.rows import read_database, visible_rows

TRAP = "tests.fleet.trap"
IN_STORE = "s3://bucket/fleet"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", CatalogConfig())
    return Place(tmp_path)


@pytest.fixture
def fleet(place: Place) -> lithify.Fleet:
    made = lithify.Fleet(str(place.folder / "fleet"), settings=place.settings)
    made.init()
    made.add(str(place.folder / "tenants" / "*" / "db"), tenant="*")
    return made


def smuggle(fleet: lithify.Fleet, pattern: str, **settings: str) -> None:
    """Write a rule as another program would: past all that `add` asks."""
    rule = DatasetRule(
        pattern, settings=MappingProxyType({k.replace("__", "."): v for k, v in settings.items()})
    )
    fleet._files.catalog.update(partial(changes.add_rules, rules=[rule]))


def config(**values: object) -> Config:
    return config_type().model_validate(values)


def allowed(name: str, value: str, base: Config | None = None, pattern: str = "s3://bucket/db") -> bool:
    try:
        wiring.config_of(DatasetRule(pattern, settings={name: value}), base or config(), IN_STORE)
    except lithify.Refused as error:
        return name not in str(error)
    return True


# Code


@pytest.mark.parametrize("hook", ["merge_operator", "compaction_filter"])
def test_code_that_a_catalog_names_is_never_imported_and_neighbours_go_on(
    place: Place, fleet: lithify.Fleet, hook: str
) -> None:
    green, red = place.database("tenants/green/db"), place.database("tenants/red/db")
    before = visible_rows(read_database(Path(red)))
    smuggle(fleet, red, **{f"slatedb__{hook}": f"{TRAP}:operator"})
    watch = Watch()
    with served(fleet, watch):
        until(lambda: bool(watch.of(events.Committed, green)), "the neighbour has no commit")
        until(lambda: bool(watch.of(events.Quarantined, red)), "nobody says what is wrong")
        until(lambda: any(f"slatedb.{hook}" in f.says for f in fleet.check()), "doctor does not say it")
    assert TRAP not in sys.modules
    assert watch.of(events.Committed, red) == 0
    assert visible_rows(read_database(Path(red))) == before
    with pytest.raises(lithify.Refused, match=f"slatedb.{hook} may name code"):
        fleet.open(red)
    assert TRAP not in sys.modules


def test_code_is_refused_before_the_rule_is_written(fleet: lithify.Fleet) -> None:
    before = fleet.catalog()
    with pytest.raises(lithify.Refused, match=r"rule /x: slatedb\.merge_operator .*fleet\.rules_may_set"):
        fleet.add("/x", settings={"slatedb.merge_operator": f"{TRAP}:operator"})
    assert fleet.catalog() == before
    assert TRAP not in sys.modules


def test_code_that_the_operator_lists_is_called(place: Place) -> None:
    listed = {"fleet.rules_may_set.slatedb.compaction_filter": "other:one, tests.fleet.listed:keep_all"}
    fleet = lithify.Fleet(str(place.folder / "fleet"), settings={**place.settings, **listed})
    fleet.init()
    url = place.database("tenants/green/db")
    fleet.add(url, settings={"slatedb.compaction_filter": "tests.fleet.listed:keep_all"})
    watch = Watch()
    with served(fleet, watch):
        until(lambda: bool(watch.of(events.Committed, url)), "no commit")
    assert "tests.fleet.listed" in sys.modules


def test_code_of_an_installed_entry_point_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(group: str) -> EntryPoints:
        found = [EntryPoint("appending", "tests.fleet.listed:operator", "lithify.hooks")]
        return EntryPoints(found).select(group=group)

    monkeypatch.setattr("lithify.fleet.allowed.entry_points", installed)
    assert allowed("slatedb.merge_operator", "tests.fleet.listed:operator")
    assert not allowed("slatedb.merge_operator", "tests.fleet.listed:keep_all")
    assert not allowed("slatedb.compression_codec_", "x"), "and nothing that is no hook"
    assert not allowed("kafka.output", "tests.fleet.listed:operator")


# Settings


DATA = {
    "service": "worker_heartbeat_timeout max_attempts collect_garbage store_wait keep_history",
    "slatedb": "l0_max_ssts max_concurrent_compactions scheduler_options enable_trivial_move "
    "checkpoint_lifetime max_sst_size min_filter_keys compression_codec block_size segments "
    "filter_prefixes filter_policies filter_bits_per_key garbage_collector_options",
    "iceberg": "properties garbage",
    "kafka": "min_cleanable_dirty_ratio min_compaction_lag max_compaction_lag delete_retention keep_unkeyed "
    "cleanup_policy newest_segment segment_bytes producer_id_expiration quiet_period copy_to live "
    "broker_build member garbage",
}
"""All that a catalog may set, as it was thought about: a new setting is not among them by itself."""

VALUES = {
    "filter_bits_per_key": "10",
    "filter_prefixes": "3",
    "block_size": "4096",
    "keep_unkeyed": "true",
    "cleanup_policy": "compact",
}
"""Of settings that do not take their default as text."""


def _text(default: object) -> str:
    return "x" if default in (None, {}, "") else str(default).lower()


def test_a_catalog_sets_only_how_data_is_treated() -> None:
    base = config()
    for option in options(config_type()):
        section, _, rest = option.name.partition(".")
        names = DATA.get(section, "").split()
        is_data = any(f"{rest}.".startswith(f"{name}.") for name in names)
        name = f"{option.name}.x" if isinstance(option.default, dict) else option.name
        value = VALUES.get(rest) or _text(option.default)
        assert allowed(name, value, base) == is_data, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store_options.aws_endpoint", "http://evil:1"),
        ("store_options.proxy_url", "http://evil:1"),
        ("store_options.aws_container_credentials_full_uri", "http://evil:1"),
        ("store_options.google_service_account", "/etc/passwd"),
        ("store_options.root_certificate", "/tmp/ca"),
        ("store_options.allow_invalid_certificates", "true"),
        ("store_options.s3://bucket#aws_region", "x"),
        ("store_options.region", "evil.example/?"),
        ("store_options.aws_region", "x.evil.example"),
        ("store_options.aws_default_region", ""),
        ("store_options.AWS_ENDPOINT", "http://evil:1"),
        ("kafka.output", "/etc"),
        ("kafka.group", "s3://elsewhere/group"),
        ("spark.master", "spark://evil:7077"),
        ("spark.conf.spark.jars", "http://evil/x.jar"),
        ("web.host", "0.0.0.0"),
        ("metrics.port", "1"),
        ("fleet.places", "s3://"),
        ("fleet.rules_may_set.slatedb.merge_operator", "*"),
        ("service.worker.heartbeat_interval", "1s"),
    ],
)
def test_hosts_paths_and_the_engine_are_the_operators(fleet: lithify.Fleet, name: str, value: str) -> None:
    assert not allowed(name, value)
    with pytest.raises(lithify.Refused):
        fleet.add("s3://bucket/db", settings={name: value})


def test_what_the_operator_lets_rules_set_is_set_to_just_that() -> None:
    base = config(
        fleet={
            "rules_may_set": {
                "store_options.aws_endpoint": "http://minio:9000, http://other:9000",
                "kafka.output": "*",
                "spark.master": "*",
            }
        }
    )
    assert allowed("store_options.aws_endpoint", "http://minio:9000", base)
    assert not allowed("store_options.aws_endpoint", "http://minio:90001", base)
    assert not allowed("store_options.aws_endpoint", "http://minio:9000, http://other:9000", base)
    assert allowed("kafka.output", "s3://any/where", base)
    assert not allowed("spark.master", "local[2]", base), "it is of the process, whatever is listed"


# Places


@pytest.mark.parametrize(
    "pattern",
    ["/var/db", "/home/*/db", "file:///var/db", "FILE:/var/db", "kafka+file:///var/log", "//var/db"],
)
def test_a_catalog_in_a_store_names_no_folder_of_the_worker(pattern: str) -> None:
    with pytest.raises(lithify.Refused, match=r"folder of this machine.*fleet\.places"):
        wiring.config_of(DatasetRule(pattern), config(), IN_STORE)
    wiring.config_of(DatasetRule(pattern), config(), "/var/fleet")
    wiring.config_of(DatasetRule(pattern), config(fleet={"places": "/var, /home"}), IN_STORE)


@pytest.mark.parametrize(
    ("pattern", "is_in"),
    [
        ("s3://lake/tenants/*/db", True),
        ("s3://lake/tenants", True),
        ("kafka+s3://lake/tenants/logs", True),
        ("iceberg://lake/db.*", True),
        ("s3://lake/tenants2/db", False),
        ("s3://lake/*/db", False),
        ("s3a://lake/tenants/db", False),
        ("s3://other/tenants/db", False),
        ("iceberg://other/db.*", False),
        ("/s3:/lake/tenants/db", False),
    ],
)
def test_the_operator_says_where_datasets_lie(pattern: str, is_in: bool) -> None:
    base = config(fleet={"places": "s3://lake/tenants/, iceberg://lake"})
    if is_in:
        assert wiring.config_of(DatasetRule(pattern), base, "/var/fleet") is base
    else:
        with pytest.raises(lithify.Refused, match=r"outside of fleet\.places"):
            wiring.config_of(DatasetRule(pattern), base, "/var/fleet")


# What members read of others


def test_a_hint_at_what_no_rule_names_is_followed_by_nobody() -> None:
    """Whoever can write a board would otherwise choose what workers open."""
    with play() as world:
        world.names.append("a")
        world.worker()
        world.run(1)
        (queue,) = world.files.catalog.read().catalog.queues
        board = f"fleet/boards/{queue.id}/coordinator-01JFXAAAAAAAAAAAAAAAAAAAAA.json"
        hint = {
            "url": "s3://elsewhere/db",
            "compaction": "01JFXAAAAAAAAAAAAAAAAAAAAA",
            "band": 0,
            "priority": 1,
            "bytes": 1,
            "since_ms": 0,
            "attempts": 0,
            "tenant": None,
            "worker": None,
            "idle_workers": 0,
            "catalog": 0,
        }
        world.memory.put(board, json.dumps({"hints": [hint]}).encode())
        world.run(60)
        assert not [opened for opened in world.worked_with if "elsewhere" in opened[0]]


@pytest.mark.parametrize("board", ["../../../../etc/passwd", "a/../../b", "/", "x\0y", "", "."])
def test_a_bell_that_names_no_board_keeps_nobody_from_working(board: str) -> None:
    with play() as world:
        world.names.append("a")
        world.dataset("a", 5)
        world.worker()
        world.run(1)
        (queue,) = world.files.catalog.read().catalog.queues
        ring = {"id": "x", "board": board, "workers": [], "is_open": True, "idle_workers": 1}
        world.memory.put(f"fleet/bells/{queue.id}", json.dumps([ring]).encode())
        world.run(5)
        world.coordinator()
        world.until(lambda: world.texts() == {"a": 1}, 90)


def test_a_rule_for_an_unknown_kind_stops_neither_the_process_nor_its_neighbours(place: Place) -> None:
    given = {**place.settings, "metrics.port": 0}
    fleet = lithify.Fleet(str(place.folder / "fleet"), settings=given)
    fleet.init()
    url = place.database("tenants/green/db")
    fleet.add(url)
    smuggle(fleet, "evil://x/y")
    smuggle(fleet, "evil://x/z-*")
    watch = Watch()
    with served(fleet, watch):
        until(lambda: bool(watch.of(events.Committed, url)), "no commit")
        until(lambda: bool(watch.of(events.Quarantined, "evil://x/y")), "nobody says what is wrong")
        until(lambda: any("evil://x/z-*" in f.says for f in fleet.check()), "doctor does not say it")


def test_the_kinds_of_unknown_rules_do_not_keep_spark_from_starting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = lithify.Fleet(str(place.folder / "fleet"), settings=place.settings)
    fleet.init()
    smuggle(fleet, "evil://x/y")
    asked: list[list[str]] = []

    class Started(Exception):
        pass

    def engine(_config: Config, urls: list[str], *_: object) -> None:
        wiring.preload(urls)
        asked.append(urls)
        raise Started

    monkeypatch.setattr("lithify.api.wiring.spark_engine", engine)
    with pytest.raises(Started):
        fleet.run(threading.Event(), keeps=False)
    assert asked == [[]]
