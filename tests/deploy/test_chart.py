"""The Helm chart: what it makes is what Kubernetes takes and Lithify understands. Judged by Kubernetes' own
schemas, and by Helm where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lithify import __version__
from lithify.cli.main import app
from lithify.config.loading import load
from lithify.datasets.registry import config_type
from tests.deploy.charts import Chart, merged, yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "helm" / "lithify"
KUBERNETES = ("1.31", "1.37")
"""An old and a new one."""
DATASETS: dict[str, Any] = {
    "datasets": ["s3://bucket/my-db", "iceberg://lake/ns.events", "kafka+s3://bucket/backup/orders"]
}
EVERYTHING: dict[str, Any] = DATASETS | {
    "imagePullSecrets": [{"name": "registry"}],
    "config": "[slatedb]\nl0_max_ssts = 16\n",
    "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "envFrom": [{"secretRef": {"name": "lithify"}}],
    "serviceAccount": {
        "name": "mine",
        "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"},
    },
    "worker": {
        "replicas": 3,
        "executors": {"instances": 4},
        "sparkConf": {"spark.network.timeout": "30s", "spark.kubernetes.executor.label.of": "a b"},
    },
    "podAnnotations": {"team": "data"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}
CASES: dict[str, dict[str, Any]] = {
    "least": DATASETS,
    "everything": EVERYTHING,
    "SlateDB coordinates": DATASETS
    | {"coordinator": {"enabled": False}, "serviceAccount": {"create": False}},
}
_DEPLOYMENTS = ["Deployment here-coordinator", "Deployment here-worker"]
MADE = {
    "least": ["ConfigMap here", "ServiceAccount here", *_DEPLOYMENTS],
    "everything": ["ConfigMap here", "ServiceAccount mine", "Role here", "RoleBinding here", *_DEPLOYMENTS],
    "SlateDB coordinates": ["ConfigMap here", "Deployment here-worker"],
}


@pytest.fixture
def chart() -> Chart:
    return Chart(FOLDER)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_what_it_makes(case: str, version: str, chart: Chart) -> None:
    documents = chart.documents(CASES[case])
    for document in documents:
        import_module("kubernetes_validate").validate(document, version, strict=True)
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "here"
    names = sorted(f"{document['kind']} {document['metadata']['name']}" for document in documents)
    assert names == sorted(MADE[case])


@pytest.mark.parametrize("case", CASES)
def test_lithify_takes_the_arguments_and_the_settings(case: str, chart: Chart, tmp_path: Path) -> None:
    documents = chart.documents(CASES[case])
    command: Any = typer.main.get_command(app)
    for pod in pods(documents):
        (container,) = pod["containers"]
        name, *arguments = container["args"]
        parsed = command.commands[name].make_context(name, list(arguments))
        assert parsed.params["urls"] == DATASETS["datasets"]
        port = container["ports"][0]["containerPort"]
        assert parsed.params["metrics_port"] == port
        (mounted,) = container["volumeMounts"]
        variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        assert Path(variables["LITHIFY_CONFIG"]).parent == Path(mounted["mountPath"])
        used = {word for text in arguments for word in re.findall(r"\$\((\w+)\)", text)}
        assert used <= set(variables), "else Kubernetes leaves them as they are"
    (settings,) = (d["data"]["lithify.toml"] for d in documents if d["kind"] == "ConfigMap")
    tomllib.loads(settings)
    (tmp_path / "lithify.toml").write_text(settings)
    assert load(tmp_path / "lithify.toml", model=config_type())


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"]


def test_selectors_choose_the_pods_of_their_own(chart: Chart) -> None:
    found = []
    for document in chart.documents(EVERYTHING):
        if document["kind"] == "Deployment":
            chosen = document["spec"]["selector"]["matchLabels"]
            assert chosen.items() <= document["spec"]["template"]["metadata"]["labels"].items()
            found.append(chosen)
    assert found[0] != found[1]


def test_executors_are_made_by_an_account_that_may(chart: Chart) -> None:
    documents = {document["kind"]: document for document in chart.documents(EVERYTHING)}
    (subject,) = documents["RoleBinding"]["subjects"]
    account = documents["ServiceAccount"]["metadata"]["name"]
    assert (subject["name"], account, pods([documents["Deployment"]])[0]["serviceAccountName"]) == (
        "mine",
    ) * 3
    assert documents["RoleBinding"]["roleRef"]["name"] == documents["Role"]["metadata"]["name"]


def leaves(values: dict[str, Any], before: str = "") -> list[str]:
    """The names of all values that are no maps of the chart's own."""
    found = []
    for name, value in values.items():
        path = f"{before}{name}"
        found += leaves(value, f"{path}.") if isinstance(value, dict) and value else [path]
    return found


def test_every_value_is_used_and_every_used_one_is_there(chart: Chart) -> None:
    chart.render(EVERYTHING)
    chart.render(DATASETS)  # one that is missing would be an error
    unused = [
        leaf for leaf in leaves(chart.values) if not any(f"{leaf}.".startswith(f"{u}.") for u in chart.used)
    ]
    assert not unused


def problems(values: Any) -> list[str]:
    schema = import_module("json").loads((FOLDER / "values.schema.json").read_text())
    validator = import_module("jsonschema").Draft7Validator(schema)
    validator.check_schema(schema)
    return [error.message for error in validator.iter_errors(values)]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (EVERYTHING, ""),
        (DATASETS, ""),
        ({}, "[] should be non-empty"),
        ({"datasets": ["my-db"]}, "does not match"),
        ({"datasets": ["+s3://bucket/my-log"]}, "does not match"),
        (DATASETS | {"worker": {"replicas": "3"}}, "is not of type 'integer'"),
        (DATASETS | {"workers": {}}, "'workers' was unexpected"),
        (DATASETS | {"worker": {"executors": {"instance": 1}}}, "'instance' was unexpected"),
    ],
)
def test_values_are_checked(values: dict[str, Any], says: str, chart: Chart) -> None:
    found = problems(merged(chart.values, values))
    assert len(found) == bool(says)
    assert all(says in text for text in found)


OWN_NAMES = {
    *("global", "serviceAccount.annotations", "podAnnotations", "nodeSelector", "worker.sparkConf"),
    *("affinity.podAntiAffinity", "coordinator.resources.requests", "coordinator.resources.limits"),
    *("worker.resources.requests", "worker.resources.limits"),
}
"""Where keys are the user's, or Kubernetes' own all the way down."""


def places(values: Any, before: str = "") -> Iterable[tuple[str, dict[str, Any]]]:
    """All maps in values, by their paths."""
    if isinstance(values, dict):
        yield before, values
        if before not in OWN_NAMES:
            for name, inner in values.items():
                yield from places(inner, f"{before}.{name}".lstrip("."))
    elif isinstance(values, list):
        for inner in values:
            yield from places(inner, f"{before}.0")


def test_a_name_that_nobody_knows_is_refused_wherever_it_stands(chart: Chart) -> None:
    values = merged(chart.values, EVERYTHING)
    checked = {path for path, _ in places(values)} - OWN_NAMES
    assert {"", "image", "imagePullSecrets.0", "env.0", "envFrom.0", "tolerations.0", "affinity"} <= checked
    for path, found in places(values):
        if path not in OWN_NAMES:
            found["replicaz"] = {}
            assert problems(values) != [], path
            del found["replicaz"]
    assert problems(values) == []


def test_a_worker_has_memory_for_a_task_on_each_core_that_it_may_use(chart: Chart) -> None:
    """Without a limit of its cores it uses those of the node, and is killed for the memory."""
    of = chart.values["worker"]["resources"]
    assert of["requests"] == of["limits"]
    cores, memory_gib = int(of["limits"]["cpu"]), int(of["limits"]["memory"].removesuffix("Gi"))
    assert cores * 600 * 10**6 + (1 << 30) <= memory_gib << 30


@pytest.mark.parametrize("amount", ["1", 1, 0.5, "500m", "2Gi"])
def test_amounts_of_resources(amount: object, chart: Chart) -> None:
    assert problems(requesting(chart, amount)) == []


@pytest.mark.parametrize("amount", ["2 GB", "much", {}, [1], True])
def test_what_is_no_amount(amount: object, chart: Chart) -> None:
    assert problems(requesting(chart, amount)) != []


def requesting(chart: Chart, amount: object) -> Any:
    return merged(chart.values, DATASETS | {"worker": {"resources": {"requests": {"cpu": amount}}}})


def test_it_is_of_this_version(chart: Chart) -> None:
    assert chart.about["appVersion"] == __version__


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm on this machine")
@pytest.mark.parametrize("case", CASES)
def test_helm_makes_the_same_of_it(case: str, chart: Chart, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CASES[case]))
    for command in (["lint"], ["template", "here", "--namespace", "spark"]):
        done = subprocess.run(
            ["helm", *command, str(FOLDER), "--values", str(values)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def by_name(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(documents, key=lambda document: (document["kind"], document["metadata"]["name"]))

    made = filter(None, yaml.safe_load_all(done.stdout))
    assert by_name(made) == by_name(chart.documents(CASES[case]))
