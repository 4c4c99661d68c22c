"""What people copy to deploy Lithify: commands, options, metrics and files in it are those that there are."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from lithify.datasets.iceberg.maintenance.expire import ExpiryOutcome
from lithify.fleet.members import FleetRole
from lithify.fleet.metrics import FleetMetrics
from lithify.observe.metrics import FAILURES, Metrics
from lithify.protocol.model import CompactionState
from lithify.testing import ManualClock
from tests.cli.invoking import COMMAND
from tests.datasets.slatedb.trees import EMPTY
from tests.metrics.test_metrics import DATASET, URL, names_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DURATION = re.compile(r"(\d+(ms|[smhdwy]))+")


def rules() -> list[dict[str, Any]]:
    document = import_module("yaml").safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    assert set(document) == {"groups"}
    (group,) = document["groups"]
    assert set(group) == {"name", "rules"}
    found: list[dict[str, Any]] = group["rules"]
    return found


def names_of_fleets() -> set[str]:
    """Gauges over all datasets of a fleet."""
    clock = ManualClock()
    metrics = FleetMetrics(clock, Metrics(clock, coordinates=False), [FleetRole.COORDINATOR])
    return {f.name for f in metrics.registry.collect() if f.name.startswith("lithify_fleet_")}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_ask_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    metrics = Metrics(ManualClock(), coordinates=True)
    metrics.saw_backlog(URL, DATASET.backlog(EMPTY, 0))
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Lithify[A-Za-z]+", rule["alert"])
    used = re.findall(r"\blithify_\w+", rule["expr"])
    assert used
    assert set(used) <= names_of(metrics) | names_of_fleets()
    assert isinstance(promql_parser.parse(rule["expr"]), promql_parser.BinaryExpr), "else it always fires"
    assert DURATION.fullmatch(rule.get("for", "1m"))
    # A counter is asked how it has grown, a gauge what it is.
    for name in used:
        assert name.endswith("_total") == bool(re.search(rf"(increase|rate)\({name}\b", rule["expr"])), name
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    if set(used) <= names_of_fleets():
        assert "{{ $value }}" in rule["annotations"]["summary"]
        return
    assert "{{ $labels.dataset }}" in rule["annotations"]["summary"]
    assert re.search(r"by \(dataset(, by)?\)", rule["expr"]), "else the label is gone"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_select_by_labels_and_values_that_there_are(rule: dict[str, Any]) -> None:
    """Else they never fire, and nobody notices."""
    found = vars(Metrics(ManualClock(), coordinates=True)).values()
    wrapped = [metric for metric in found if isinstance(metric, MetricWrapperBase)]
    labels = {name: m._labelnames for m in wrapped for name in (m._name, f"{m._name}_total")}
    values = {
        "state": {state.value for state in CompactionState},
        "kind": set(FAILURES),
        "outcome": {outcome.value for outcome in ExpiryOutcome},
    }
    for metric, matchers in re.findall(r"\b(lithify_\w+)(?:\{([^}]*)\})?", rule["expr"]):
        if metric in names_of_fleets():
            assert not matchers
            continue
        assert "dataset" in labels[metric]
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            assert label in labels[metric]
            assert set(value.split("|")) <= values[label]


@pytest.mark.parametrize("file", sorted((ROOT / "dashboards").iterdir()), ids=lambda file: file.name)
def test_expressions_of_dashboards_are_some(file: Path) -> None:
    panels = json.loads(file.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert expressions
    for expression in expressions:
        asked = expression.replace("$__rate_interval", "1m")  # as Grafana does before it asks
        assert promql_parser.parse(re.sub(r"\$\w+", "any", asked)), expression


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_every_alarm_that_is_worth_one_has_a_rule() -> None:
    """Those of docs/operations.md, where it says so."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("Alert on:")[2].partition("\n\n")[2]
    told = set(re.findall(r"(?m)^\| `(lithify_\w+)", text.partition("\n\n")[0]))
    assert len(told) > 10
    assert told == {name for rule in rules() for name in re.findall(r"\blithify_\w+", rule["expr"])}


def test_a_process_that_is_gone_raises_an_alert() -> None:
    """Its series end with it: a rule that only compares the newest sample would see nothing."""
    (rule,) = [rule for rule in rules() if rule["alert"] == "LithifyNotLooking"]
    assert "last_over_time(lithify_last_look_timestamp_seconds[" in rule["expr"]


def test_the_image_has_the_dashboard() -> None:
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extra,) = re.findall(r"pip install --no-cache-dir '/src\[(\w+)\]'", (DEPLOY / "Dockerfile").read_text())
    assert extra == "web"
    assert extra in made, "else --web-port is refused"


def commands() -> Iterator[tuple[str, str]]:
    """Every `lithify …` in the files, with the file."""
    for path in sorted(path for path in DEPLOY.iterdir() if path.is_file()):
        for line in path.read_text().splitlines():
            found = re.search(r"(?:/bin/|RUN |docker run --rm )lithify ([a-z-]+.*)", line)
            if found:
                yield path.name, found[1].partition(" && ")[0].rstrip(".")


def test_there_are_commands() -> None:
    assert {file for file, _ in commands()} == {"Dockerfile", "lithify.cron", "lithify.service"}


@pytest.mark.parametrize(("file", "line"), sorted(commands()))
def test_commands_and_options_exist(file: str, line: str) -> None:
    name, *words = shlex.split(line)
    assert name in COMMAND.commands, file
    known = {opt for p in COMMAND.commands[name].params for opt in p.opts}
    assert {word for word in words if word.startswith("--")} <= known, file


def test_the_image_copies_what_there_is() -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line


def test_the_unit_is_one_that_systemd_reads() -> None:
    sections: dict[str, list[str]] = {}
    for line in (DEPLOY / "lithify.service").read_text().splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            sections[header[1]] = []
        elif line and not line.startswith("#"):
            key, separator, _ = line.partition("=")
            assert separator, line
            sections[list(sections)[-1]].append(key)
    assert list(sections) == ["Unit", "Service", "Install"]
    assert {"ExecStart", "User", "Restart", "TimeoutStopSec"} <= set(sections["Service"])


def test_the_cron_lines_have_five_times_a_user_and_a_command() -> None:
    jobs = [
        line
        for line in (DEPLOY / "lithify.cron").read_text().splitlines()
        if line and not line.startswith("#") and not re.match(r"\w+=", line)
    ]
    assert len(jobs) == 3
    for line in jobs:
        *times, user, command = line.split(maxsplit=6)
        assert all(re.fullmatch(r"[\d*/,-]+", time) for time in times)
        assert (user, command.split()[0]) == ("lithify", "flock")
