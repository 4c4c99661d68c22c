"""Settings from file, environment and options: what wins, what is refused, and where it came from."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.api import client
from lithify.base.errors import Refused
from lithify.config import loading
from lithify.config.durations import format_duration, parse_duration
from lithify.config.loading import Loaded
from lithify.config.model import options
from lithify.config.sizes import format_size, parse_size
from lithify.datasets.iceberg.settings import IcebergSettings
from lithify.datasets.registry import config_type
from lithify.datasets.slatedb.settings import SlatedbSettings

FILE = """
[store_options]
aws_endpoint = "http://from-the-file"
[service]
poll_interval = "2s"
worker_heartbeat_timeout_ms = 10000
[service.worker]
heartbeat_interval = "3s"
[slatedb]
l0_max_ssts = 16
[slatedb.scheduler_options]
min_compaction_sources = 3
[spark.conf]
"spark.executor.memory" = "2g"
"""


def load(file: Path | None = None, flags: Mapping[str, tuple[str, object]] | None = None) -> Loaded:
    return loading.load(file, flags, config_type())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lithify.toml"
    path.write_text(FILE)
    return path


def test_the_file_is_read_with_slatedbs_names_and_units(file: Path) -> None:
    config = load(file).config
    slatedb = config.of(SlatedbSettings)
    assert slatedb.l0_max_ssts == 16
    assert config.service.poll_interval == timedelta(seconds=2)
    assert config.service.worker_heartbeat_timeout == timedelta(seconds=10)
    assert config.service.worker.heartbeat_interval == timedelta(seconds=3)
    assert slatedb.scheduler_options == {"min_compaction_sources": "3"}
    assert config.spark.conf == {"spark.executor.memory": "2g"}
    assert config.service.commit_compacted_interval == timedelta(seconds=1)


def test_options_win_over_the_environment_and_that_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITHIFY_SERVICE__POLL_INTERVAL_MS", "500")
    monkeypatch.setenv("LITHIFY_SLATEDB__L0_MAX_SSTS", "24")
    monkeypatch.setenv("LITHIFY_STORE_OPTIONS__AWS_REGION", "eu-west-1")
    loaded = load(file, {"slatedb.l0_max_ssts": ("--set", "32"), "spark.conf.a.b": ("--spark-conf", "1")})
    assert loaded.config.of(SlatedbSettings).l0_max_ssts == 32
    assert loaded.config.service.poll_interval == timedelta(milliseconds=500)
    assert loaded.config.store_options == {"aws_endpoint": "http://from-the-file", "aws_region": "eu-west-1"}
    assert loaded.config.spark.conf == {"spark.executor.memory": "2g", "a.b": "1"}
    origins = {s.name: (s.value, s.origin) for s in loaded.settings()}
    assert origins["slatedb.l0_max_ssts"] == (32, "--set")
    assert origins["service.poll_interval"] == (
        "500ms",
        "LITHIFY_SERVICE__POLL_INTERVAL_MS",
    )
    assert origins["service.worker_heartbeat_timeout"] == ("10s", str(file))
    assert origins["spark.conf.a.b"] == ("1", "--spark-conf")
    assert origins["slatedb.max_sst_size"] == (268_435_456, "default")


def test_tables_may_come_as_json_in_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_SPARK__CONF", '{"spark.executor.cores": 2}')
    loaded = load()
    assert loaded.config.spark.conf == {"spark.executor.cores": "2"}
    assert loaded.origins["spark.conf.spark.executor.cores"] == "LITHIFY_SPARK__CONF"


def test_variables_keep_the_keys_of_tables_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those in capital letters, as variables are written."""
    monkeypatch.setenv("LITHIFY_SPARK__CONF", '{"spark.executor.cores": 2, "spark.dynamicAllocation.x": 3}')
    monkeypatch.setenv("lithify_Spark__Conf__spark.dynamicAllocation.enabled", "true")
    monkeypatch.setenv("LITHIFY_SPARK__CONF__spark.executor.cores", "4")
    monkeypatch.setenv("LITHIFY_STORE_OPTIONS__AWS_REGION", "eu-west-1")
    monkeypatch.setenv("LITHIFY_STORE_OPTIONS__s3://Archive#aws_region", "eu-west-2")
    monkeypatch.setenv("LITHIFY_SLATEDB__SCHEDULER_OPTIONS__MIN_COMPACTION_SOURCES", "3")
    loaded = load()
    assert loaded.config.spark.conf == {
        "spark.executor.cores": "4",
        "spark.dynamicAllocation.x": "3",
        "spark.dynamicAllocation.enabled": "true",
    }
    assert loaded.config.store_options == {"aws_region": "eu-west-1", "s3://Archive#aws_region": "eu-west-2"}
    assert loaded.config.of(SlatedbSettings).scheduler_options == {"min_compaction_sources": "3"}
    origins = {setting.name: setting.origin for setting in loaded.settings()}
    assert origins["spark.conf.spark.dynamicAllocation.x"] == "LITHIFY_SPARK__CONF"
    assert origins["spark.conf.spark.executor.cores"] == "LITHIFY_SPARK__CONF__spark.executor.cores"
    assert (
        origins["spark.conf.spark.dynamicAllocation.enabled"]
        == "lithify_Spark__Conf__spark.dynamicAllocation.enabled"
    )


def test_a_variable_and_its_milliseconds_are_the_same_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_SERVICE__POLL_INTERVAL", "1s")
    monkeypatch.setenv("LITHIFY_SERVICE__POLL_INTERVAL_MS", "1000")
    with pytest.raises(Refused, match="same setting"):
        load()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spark.master.", "no setting spark.master. .*did you mean spark.master"),
        ("spark.master.x", "no setting spark.master.x .*did you mean spark.master"),
        (".spark.master", "no setting .spark.master .*did you mean spark.master"),
        ("spark..master", "no setting spark..master .*did you mean spark.master"),
        ("service.", "no setting service"),
        ("spark", "setting spark .*is a table"),
        ("spark.conf", "setting spark.conf .*is a table"),
        ("spark.conf.", "setting spark.conf. .*its name is missing"),
        ("compactor_options.poll_interval.", "no setting service.poll_interval. .*mean service.poll"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, says: str) -> None:
    with pytest.raises(Refused, match=says) as refusal:
        load(None, {name: (f"--set {name}", "x")})
    assert f"(from --set {name})" in str(refusal.value)


def test_an_entry_without_a_name_is_refused_whoever_gives_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[spark.conf]\n'' = 'x'")
    with pytest.raises(Refused, match=r"bad\.toml.*its name is missing"):
        load(path)
    monkeypatch.setenv("LITHIFY_STORE_OPTIONS__", "x")
    with pytest.raises(Refused, match=r"LITHIFY_STORE_OPTIONS__\).*its name is missing"):
        load()


@pytest.mark.parametrize(
    "variable", ["LITHIFY_SPARK__CONF", "LITHIFY_STORE_OPTIONS", "LITHIFY_SERVICE", "lithify_service__worker"]
)
@pytest.mark.parametrize("value", ["{", "secret", "[1]", ""])
def test_a_variable_of_a_table_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Refused, match=f"variable {variable} names a table") as refusal:
        load()
    assert "secret" not in str(refusal.value)


def test_the_file_may_be_named_by_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_CONFIG", str(file))
    assert load().config.of(SlatedbSettings).l0_max_ssts == 16


def test_secrets_are_not_shown() -> None:
    flags = {"store_options.aws_secret_access_key": ("--store-option", "hunter2")}
    loaded = load(None, flags)
    assert loaded.config.store_options["aws_secret_access_key"] == "hunter2"
    assert "hunter2" not in str(loaded.settings())


def test_options_of_a_store_may_be_for_what_is_at_a_url() -> None:
    options = {
        "aws_region": "eu-west-1",
        "aws_endpoint": "for all",
        "s3://archive#aws_endpoint": "of a bucket",
        "s3://archive/old/#aws_endpoint": "of a folder",
        "s3://archive#aws_secret_access_key": "hunter2",
        "s3:#aws_region": "of a scheme",
    }
    loaded = load(
        None, {f"store_options.{name}": ("--store-option", value) for name, value in options.items()}
    )
    assert "hunter2" not in str(loaded.settings())
    assert "hunter2" in loaded.secrets()
    secret = {"aws_secret_access_key": "hunter2"}
    for url, endpoint, region, more in (
        ("s3://archive", "of a bucket", "of a scheme", secret),
        ("s3://archive/db", "of a bucket", "of a scheme", secret),
        ("s3://archive/old", "of a folder", "of a scheme", secret),
        ("s3://archive/old/db/", "of a folder", "of a scheme", secret),
        ("s3://archive/older", "of a bucket", "of a scheme", secret),
        ("s3://archives/db", "for all", "of a scheme", {}),
        ("gs://archive/db", "for all", "eu-west-1", {}),
        ("kafka+s3://archive/old/log", "of a folder", "of a scheme", secret),
        ("s3://archive/%6Fld/db", "of a folder", "of a scheme", secret),
    ):
        expected = {"aws_region": region, "aws_endpoint": endpoint, **more}
        assert loaded.config.store_options_of(url) == expected, url


@pytest.mark.parametrize(
    "name", ["archive#aws_endpoint", "s3://archive#", "#aws_endpoint", "s3://archive/day"]
)
def test_an_option_of_no_place_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="neither a name nor of the form URL#name"):
        load(None, {f"store_options.{name}": ("--store-option", "x")})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poll_interval = '5s'", "poll_interval.*did you mean service.poll_interval"),
        ("[service]\npol_interval = '5s'", "pol_interval.*did you mean service.poll_interval"),
        (
            "[compactor_options]\npol_interval = '5s'",
            "compactor_options.pol_interval.*mean service.poll_interval",
        ),
        ("[compactor_options.worker]\nmax_attempts = 1", "compactor_options.worker.max_attempts"),
        ("compactor_options = 3", "no setting compactor_options"),
        ("[service]\npoll_interval = 5", "poll_interval.*unit"),
        ("[service]\npoll_interval = '5 parsecs'", "not a duration"),
        ("[service]\npoll_interval = '5s'\npoll_interval_ms = 5000", "same setting"),
        ("[service]\npoll_interval_ms = -1", "whole number of milliseconds"),
        ("[service]\npoll_interval = '0s'", "service.poll_interval.*at least 1ms"),
        ("[service]\ncommit_compacted_interval_ms = 0", "commit_compacted_interval.*at least 1ms"),
        ("[service]\nworker_heartbeat_timeout = '0s'", "worker_heartbeat_timeout.*at least 1ms"),
        ("[service]\nworker_heartbeat_timeout = '0.4ms'", "worker_heartbeat_timeout.*at least 1ms"),
        ("[service.worker]\ncompactions_poll_interval = '0s'", "compactions_poll_interval.*at least 1ms"),
        ("[service.worker]\nheartbeat_interval = '0s'", "service.worker.heartbeat_interval.*at least 1ms"),
        ("[service.worker]\nheartbeat_interval = '30s'", "raise worker_heartbeat_timeout or lower"),
        ("[slatedb]\ncheckpoint_lifetime = '0s'", "slatedb.checkpoint_lifetime.*at least 1s"),
        ("[slatedb]\ncheckpoint_lifetime_ms = 400", "slatedb.checkpoint_lifetime.*at least 1s"),
        ("[kafka.garbage]\ninterval = '0s'", "kafka.garbage.interval.*at least 1ms"),
        ("[slatedb]\nmax_sst_size = 0", "max_sst_size.*greater than"),
        ("[slatedb]\nmax_sst_size = '64 parsecs'", "max_sst_size.*not a size.*256MB"),
        ("[slatedb]\nmax_sst_size = '1G'", "max_sst_size.*not a size"),
        ("[slatedb]\nblock_size = '1.0001kB'", "whole number of bytes"),
        ("[slatedb]\nmax_sst_size_ms = 1", "no setting .*max_sst_size_ms"),
        ("[log]\nformat = 'xml'", "log.format.*text"),
        ("[metrics]\nport = 70000", "metrics.port"),
        ("[zookeeper]\nhosts = 'a'", "no setting zookeeper"),
        ("[spark]\nconf = 3", "spark.conf"),
        ("spark = 3", "setting spark "),
        ("[spark.conf]\na = [1]", "text or a number"),
        ("= 3", "not TOML"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(Refused, match=says) as refusal:
        load(path)
    assert "bad.toml" in str(refusal.value)


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("LITHIFY_SERVICE__POL_INTERVAL", "poll_interval"),
        ("LITHIFY_COMPACTOR_OPTIONS__POL_INTERVAL", "service.poll_interval"),
        ("LITHIFY_SERVICES__POLL_INTERVAL", "LITHIFY_SERVICE__POLL_INTERVAL"),
        ("LITHIFY_SERVICE_POLL_INTERVAL", "two underscores"),
        ("LITHIFY_COMPACTOR_OPTIONS_POLL_INTERVAL", "two underscores"),
        ("LITHIFY_METRICS_PORT", "two underscores"),
        ("LITHIFY_CACHE_DIRECTORY", "mean LITHIFY_CACHE_DIR"),
        ("LITHIFY_MASTER", "names no setting"),
        ("lithify_config", "mean LITHIFY_CONFIG"),
    ],
)
def test_misspelled_variables_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, says: str) -> None:
    monkeypatch.setenv(variable, "5s")
    with pytest.raises(Refused, match=says) as refusal:
        load()
    assert variable in str(refusal.value)


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes makes some for services named lithify and lithify-metrics."""
    for name in ("PORT", "PORT_9090_TCP", "METRICS_PORT", "METRICS_PORT_9090_TCP_ADDR"):
        monkeypatch.setenv(f"LITHIFY_{name}", "tcp://10.0.0.1:9090")
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "METRICS_SERVICE_HOST"):
        monkeypatch.setenv(f"LITHIFY_{name}", "9090")
    monkeypatch.setenv("LITHIFY_CACHE_DIR", "cache")
    assert load().origins == {}


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[service]\npol_interval = '5s'\n[slatedb]\nmax_sst_size = 'large'\n")
    monkeypatch.setenv("LITHIFY_NO_SUCH", "1")
    monkeypatch.setenv("LITHIFY_SPARK", "1")
    with pytest.raises(Refused) as refusal:
        load(path, {"metrics.port": ("--metrics-port", "x"), "log.format": ("--log-format", "text")})
    first, *others = str(refusal.value).splitlines()
    assert first == "5 errors in the settings:"
    for said, other in zip(
        ("LITHIFY_NO_SUCH", "LITHIFY_SPARK names a table", "service.pol_interval", "--metrics-port", "large"),
        others,
        strict=True,
    ):
        assert said in other
    path.write_text("= 3")
    with pytest.raises(Refused, match=r"is not TOML(.|\n)*LITHIFY_NO_SUCH(.|\n)*--metrics-port"):
        load(path, {"metrics.port": ("--metrics-port", "x")})


def test_sizes_are_written_as_people_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "lithify.toml"
    path.write_text("[slatedb]\nmax_sst_size = '1GiB'\nblock_size = 4096\n")
    monkeypatch.setenv("LITHIFY_SERVICE__WORKER__HEARTBEAT_BYTES", "0.5 mb")
    loaded = load(path, {"slatedb.block_size": ("--block-size", "8KiB")})
    slatedb = loaded.config.of(SlatedbSettings)
    assert (slatedb.max_sst_size, slatedb.block_size) == (1 << 30, 8192)
    assert loaded.config.service.worker.heartbeat_bytes == 500_000
    values = {setting.name: setting.value for setting in loaded.settings()}
    assert format_size(values["slatedb.max_sst_size"]) == "1GiB"  # type: ignore[arg-type]


@given(st.integers(0, 1 << 60))
def test_sizes_are_read_back_as_written(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("256MiB", 1 << 28), ("64MB", 64_000_000), ("100kB", 100_000), ("4KiB", 4096), ("17", 17), ("0", 0)],
)
def test_sizes_are_written_with_the_unit_that_fits(text: str, size_bytes: int) -> None:
    assert (parse_size(text), format_size(size_bytes)) == (size_bytes, text)
    assert parse_size(f" {text.lower()} ") == size_bytes


FORMER = """
l0_max_ssts = 16
[table_options]
max-tasks = 7
[compactor_options]
poll_interval_ms = 2000
[compactor_options.worker]
heartbeat_bytes = 5
max_sst_size = 6
[compactor_options.scheduler_options]
min_compaction_sources = 3
[garbage_collector_options]
enabled = false
[garbage_collector_options.compacted_options]
min_age = "1d"
"""


def test_names_of_before_are_read_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "before.toml"
    path.write_text(FORMER)
    monkeypatch.setenv("lithify_compactor_options__max_attempts", "9")
    monkeypatch.setenv("LITHIFY_COMPACTOR_OPTIONS__WORKER", '{"block_size": 8192}')
    monkeypatch.setenv("LITHIFY_COMPACTOR_OPTIONS__SEGMENTS__PATTERN", "{u64:ms}")
    flag = {"compactor_options.checkpoint_lifetime": ("--set", "1h")}
    loaded = load(path, flag)
    slatedb, iceberg = loaded.config.of(SlatedbSettings), loaded.config.of(IcebergSettings)
    service = loaded.config.service
    assert (slatedb.l0_max_ssts, slatedb.max_sst_size, slatedb.block_size) == (16, 6, 8192)
    assert (slatedb.scheduler_options, slatedb.segments.pattern) == (
        {"min_compaction_sources": "3"},
        "{u64:ms}",
    )
    assert slatedb.checkpoint_lifetime == timedelta(hours=1)
    assert (service.poll_interval, service.max_attempts) == (timedelta(seconds=2), 9)
    assert (service.worker.heartbeat_bytes, service.collect_garbage) == (5, False)
    assert iceberg.properties == {"max-tasks": "7"}
    for collected in (slatedb.garbage_collector_options.compacted_options, iceberg.garbage.data_files):
        assert collected.min_age == timedelta(days=1)
    assert len(loaded.warnings) == 13
    for warning in (
        f"{path}: the setting table_options.max-tasks is now iceberg.properties.max-tasks",
        f"{path}: the setting compactor_options.poll_interval_ms is now service.poll_interval_ms",
        f"{path}: the setting garbage_collector_options.compacted_options.min_age "
        "is now iceberg.garbage.data_files.min_age",
        "LITHIFY_COMPACTOR_OPTIONS__WORKER: the setting compactor_options.worker.block_size "
        "is now slatedb.block_size",
        "--set: the setting compactor_options.checkpoint_lifetime is now slatedb.checkpoint_lifetime",
    ):
        assert warning in loaded.warnings
    origins = {setting.name: setting.origin for setting in loaded.settings()}
    assert origins["service.poll_interval"] == origins["iceberg.garbage.data_files.min_age"] == str(path)
    assert origins["slatedb.block_size"] == "LITHIFY_COMPACTOR_OPTIONS__WORKER"


def test_a_name_of_before_and_that_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources win over each other whatever name they use; in one source they are the same setting."""
    path = tmp_path / "both.toml"
    path.write_text("[service]\npoll_interval = '1s'\n[compactor_options]\npoll_interval = '2s'")
    with pytest.raises(Refused, match="give only service"):
        load(path)
    path.write_text("[service]\npoll_interval = '1s'")
    monkeypatch.setenv("LITHIFY_COMPACTOR_OPTIONS__POLL_INTERVAL_MS", "2000")
    assert load(path).config.service.poll_interval == timedelta(seconds=2)
    newer = {"service.poll_interval": ("--set", "3s")}
    assert load(path, newer).config.service.poll_interval == timedelta(seconds=3)


SLATEDB_TOML = """
flush_interval = "100ms"
l0_max_ssts = 12
compression_codec = "Zstd"
min_filter_keys = 7
some_new_setting = 1

[compactor_options]
poll_interval = "2s"
max_concurrent_compactions = 3
metric_level = "Info"
scheduler_options = {min_compaction_sources = "6"}

[compactor_options.worker]
max_sst_size = 1000000
max_fetch_tasks = 4
min_filter_keys = 9

[garbage_collector_options.manifest_options]
interval = "60s"
min_age = "1h"
new_option = true

[object_store_cache_options]
root_folder = "/tmp/cache"
"""


def test_settings_files_of_slatedb_are_read(tmp_path: Path) -> None:
    file = tmp_path / "SlateDb.toml"
    file.write_text(SLATEDB_TOML)
    loaded = load(file)
    own = loaded.config.of(SlatedbSettings)
    assert (own.l0_max_ssts, own.max_concurrent_compactions, own.max_sst_size) == (12, 3, 1_000_000)
    assert (own.compression_codec, own.min_filter_keys) == ("Zstd", 9)
    assert own.scheduler_options == {"min_compaction_sources": "6"}
    assert own.garbage_collector_options.manifest_options.min_age == timedelta(hours=1)
    skipped = next(said for said in loaded.warnings if "skipped" in said)
    assert skipped.rpartition(": ")[2].split(", ") == [
        "flush_interval",
        "min_filter_keys",
        "some_new_setting",
        "compactor_options.metric_level",
        "compactor_options.worker.max_fetch_tasks",
        "garbage_collector_options.manifest_options.new_option",
        "object_store_cache_options.root_folder",
    ]
    as_json = tmp_path / "SlateDb.json"
    as_json.write_text(json.dumps({**tomllib.loads(SLATEDB_TOML), "wal_enabled": None}))
    assert load(as_json).config == loaded.config


def test_all_errors_of_a_settings_file_of_slatedb_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "SlateDb.toml"
    file.write_text(
        "flush_interval = '1s'\nl0_max_ssts = 'many'\ncompactor_options.checkpoint_lifetime = 'x'\n"
    )
    with pytest.raises(Refused, match=r"(?s)2 errors .*l0_max_ssts.*checkpoint_lifetime"):
        load(file)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '"\\ud800"'])
def test_a_file_that_is_no_json(tmp_path: Path, text: str) -> None:
    file = tmp_path / "SlateDb.json"
    file.write_text(text)
    with pytest.raises(Refused, match="is not JSON"):
        load(file)


def test_a_file_with_a_section_of_lithify_is_not_of_slatedb(tmp_path: Path) -> None:
    file = tmp_path / "lithify.toml"
    file.write_text("flush_interval = '1s'\n[slatedb]\nl0_max_ssts = 4\n")
    with pytest.raises(Refused, match="there is no setting flush_interval"):
        load(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        load(tmp_path / "missing.toml")


def test_every_setting_says_what_it_is() -> None:
    for option in options(config_type()):
        assert re.fullmatch(r"[a-z0-9_.]+", option.name)
        assert option.description


@given(st.timedeltas(timedelta(0), timedelta(days=1000)))
def test_durations_are_read_back_as_written(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("5s", 5000), ("100ms", 100), ("1m 30s", 90_000), ("1.5h", 5_400_000), ("0s", 0)],
)
def test_durations_are_written_as_slatedb_writes_them(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("text", ["", " ", "5", "s", "5s!", "-5s", "5 s 3", "99999999999999d"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|longer than"):
        parse_duration(text)


def test_a_short_timeout_alone_brings_heartbeats_that_go_with_it() -> None:
    service = client.settled({"service.worker_heartbeat_timeout": "6s"}).service
    assert service.worker.heartbeat_interval == timedelta(seconds=2)
    assert service.worker_heartbeat_timeout == timedelta(seconds=6)


def test_one_setting_under_two_spellings_of_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_WEB__PORT", "1")
    monkeypatch.setenv("lithify_web__port", "2")
    with pytest.raises(Refused, match="are the same; give only one"):
        load()


@pytest.mark.parametrize("value", ['{"nonsense": {}}', '{"poll_interval": {}}'])
def test_an_empty_table_for_what_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LITHIFY_SERVICE", value)
    with pytest.raises(Refused, match=r"nonsense|poll_interval"):
        load()


def test_a_misspelled_part_of_a_variable_is_told_of_by_its_dotted_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LITHIFY_SLATEDB__GARBAGE__MANIFEST__INTERVAL", "1s")
    with pytest.raises(Refused, match=r"slatedb\.garbage\.manifest\.interval"):
        load()
