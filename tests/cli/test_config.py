"""`lithify config show` prints a file that `--config` reads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lithify.cli.running import pairs
from tests.cli.invoking import invoke, invoke_json


def test_what_is_shown_can_be_given_back(tmp_path: Path) -> None:
    given = ["--set", "service.poll_interval=1s", "--set", "spark.conf.spark.executor.memory=2g"]
    shown = invoke("config", "show", *given)
    assert shown.exit_code == 0, shown.stderr
    document = tomllib.loads(shown.stdout)
    assert document["service"]["poll_interval"] == "1s"
    assert document["spark"]["conf"] == {"spark.executor.memory": "2g"}
    file = tmp_path / "lithify.toml"
    file.write_text(shown.stdout)
    again = invoke_json("config", "show", "--config", file)
    assert {s["name"]: s["value"] for s in again}["service.poll_interval"] == "1s"


@pytest.mark.parametrize("changed", [[], ["--changed"]])
@pytest.mark.parametrize(
    "given",
    [
        {"slatedb.scheduler_options.min_compaction_sources": "2"},
        {"slatedb.scheduler_options.min_compaction_sources": "2", "slatedb.max_sst_size": 64_000_000},
        {"iceberg.properties.granularity": "month", "iceberg.garbage.manifests.min_age": "2h"},
        {"slatedb.segments.granularity": "week", "spark.conf.spark.executor.memory": "2g"},
        {"store_options.aws_endpoint": "http://a", "store_options.s3://b/c#aws_endpoint": "http://d"},
    ],
)
def test_what_is_shown_of_tables_of_settings_can_be_given_back(
    tmp_path: Path, given: dict[str, object], changed: list[str]
) -> None:
    file = tmp_path / "lithify.toml"
    sets = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    file.write_text(invoke("config", "show", *changed, *sets).stdout)
    again = {s["name"]: s["value"] for s in invoke_json("config", "show", "--config", file)}
    assert again == {s["name"]: s["value"] for s in invoke_json("config", "show", *sets)}
    assert {name: again[name] for name in given} == given


def test_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_LOG__FORMAT", "json")
    shown = invoke_json("config", "show", "--changed", "--store-option", "aws_secret_access_key=hunter2")
    assert {(s["name"], s["value"], s["from"]) for s in shown} == {
        ("log.format", "json", "LITHIFY_LOG__FORMAT"),
        ("store_options.aws_secret_access_key", "********", "--store-option"),
    }


def test_the_option_of_the_command_line_wins_over_the_level_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lithify.toml"
    file.write_text("[log]\nlevel = 'error'\n[compactor_options]\npoll_interval = '1s'\n")
    command = ("plan", "--config", file, tmp_path / "nothing")
    warning = "the setting compactor_options.poll_interval is now service.poll_interval"
    assert warning not in invoke(*command).stderr
    assert warning in invoke("--verbose", *command).stderr


def test_of_an_option_the_first_equals_sign_ends_the_name() -> None:
    given = {
        "aws_session_token": "a=b==",
        "s3://bucket/day%3D1#aws_endpoint": "http://s3/?a=b",
    }
    sets = [f"--store-option={name}={value}" for name, value in given.items()]
    shown = {s["name"]: s["value"] for s in invoke_json("config", "show", "--changed", *sets)}
    assert shown["store_options.s3://bucket/day%3D1#aws_endpoint"] == "http://s3/?a=b"
    assert pairs([f"{name}={value}" for name, value in given.items()]) == given
    refused = invoke("config", "show", "--store-option", "s3://bucket/day=1#aws_endpoint=http://s3")
    assert (refused.exit_code, "is written %3D" in " ".join(refused.stderr.split())) == (2, True)
