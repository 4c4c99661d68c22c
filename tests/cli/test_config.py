"""`lithify config show` prints a file that `--config` reads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

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


def test_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_LOG__FORMAT", "json")
    shown = invoke_json("config", "show", "--changed", "--store-option", "aws_secret_access_key=hunter2")
    assert {(s["name"], s["value"], s["from"]) for s in shown} == {
        ("log.format", "json", "LITHIFY_LOG__FORMAT"),
        ("store_options.aws_secret_access_key", "********", "--store-option"),
    }
