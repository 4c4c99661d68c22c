"""Every block of code in the documents is judged by something: what has no judge fails.

| block                                  | judge                                                          |
|----------------------------------------|----------------------------------------------------------------|
| `python`, `toml`                       | `test_documents`: which test runs it; the settings             |
| `yaml`                                 | here: Kubernetes' schemas, the chart's, else names by names    |
| `json`, `properties`                   | here                                                           |
| a line of a shell                      | here, by its first word (`PROGRAMS`); `lithify`: `test_documents` |
| `curl`                                 | here, of a dashboard that is served                            |
| drawings and what commands print       | named in `DRAWN`                                               |
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.find_spark_home import _find_spark_home

import lithify
from lithify.api.client import settled
from lithify.base import events
from lithify.datasets.iceberg.format.table_properties import LOCATION_PROVIDER
from lithify.datasets.iceberg.io.reach import ALLOWED, reach_of
from lithify.observe.logs import LOGGER, EventLog
from lithify.store.urls import split_scheme
from lithify.testing import ManualClock
from lithify.web import serving
from lithify.web.guard import LEAST_TOKEN_CHARS
from tests.deploy.charts import Chart, merged, yaml
from tests.deploy.test_chart import FOLDER as CHART
from tests.deploy.test_chart import KUBERNETES, problems
from tests.docs.test_documents import DOCUMENTS, ROOT, RUN
from tests.web.dashboards import TOKEN, page_of, write_database

PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
DRAWN = {
    "ARCHITECTURE.md": ("9  cli/",),
    "README.md": ("your programs", "┌", "a query of one day"),
    "protocol.md": ("Submitted ──>",),
}
"""What is a drawing, or what a command prints, by how it begins."""


@dataclass(frozen=True, slots=True)
class Block:
    """Code in a document."""

    document: str
    language: str
    """Empty for what is indented, or does not say."""
    text: str


def blocks() -> Iterator[Block]:
    """All of them."""
    for path in PAGES:
        text = path.read_text()
        for indent, language, code in re.findall(r"(?ms)^( *)```(\w*)\n(.*?)^ *```", text):
            yield Block(path.name, language, re.sub(rf"(?m)^{indent}", "", code))
        outside = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
        for code in re.findall(r"(?m)(?:^\n|\A)((?:(?:^ {4,}.*)?\n)+)", outside):
            if code.strip():
                yield Block(path.name, "", code)


def lines(block: Block) -> Iterator[str]:
    """Of a shell, without remarks and prompts; each with all that belongs to it."""
    if block.text.strip().startswith(DRAWN.get(block.document, ("\0",))):
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|  +| )# .*$", "", line).strip()
        if line:
            yield from (part.strip() for part in line.split("&&"))


def shell() -> list[tuple[str, str]]:
    """Every line of a shell that a document shows."""
    return sorted({(b.document, line) for b in blocks() if not b.language for line in lines(b)})


# Programs


def pip(words: list[str]) -> None:
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _, package, *others = words
    name, _, extra = package.partition("[")
    cloned = f"git+{made['urls']['Homepage']}"
    assert name in (".", "./core", cloned, f"{cloned}#subdirectory=core"), "there is no release"
    assert not extra or extra.rstrip("]") in made["optional-dependencies"]
    assert others == []


def make(words: list[str]) -> None:
    for target in words:
        assert re.search(rf"(?m)^{target}:.* ## ", (ROOT / "Makefile").read_text()), target


def export(words: list[str]) -> None:
    for word in words:
        name, _, value = word.partition("=")
        assert re.fullmatch(r"(AWS|LITHIFY|PYICEBERG_CATALOG_|PYSPARK)_\w+", name), name
        assert value


def spark_submit(words: list[str]) -> None:
    known = _said(f"{SPARK}/bin/spark-submit", "--help")
    for word in words:
        assert not word.startswith("--") or re.search(rf"{word}[ ,]", known), word
    assert words[-1].endswith(".py") or split_scheme(words[-1])[0]


def spark_class(words: list[str]) -> None:
    name, *given = words
    known = _said(f"{SPARK}/bin/spark-class", name, "--help")
    for word in given:
        assert not word.startswith("--") or re.search(rf"{word}[ ,]", known), word


def simulation(words: list[str]) -> None:
    if words[:2] == ["-m", "venv"] or words[0] == "-c":
        return
    module, *given = words[1:]
    known = _said(sys.executable, "-m", module, "--help")
    for word in given:
        assert not word.strip("[]").startswith("--") or word.strip("[]") in known, word


def of_cluster(words: list[str]) -> None:
    """Helm, kubectl, docker: what they name is there."""
    for word in words:
        assert not word.startswith("deploy/") or (ROOT / word).exists(), word
    if words[0] == "exec":
        kind, _, name = words[1].partition("/")
        made = Chart(CHART).render({"datasets": ["s3://b/d"]}, release="lithify")
        texts = (text for file, text in made.items() if file.endswith(".yaml"))
        documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
        assert (kind, name) in {(d["kind"].lower(), d["metadata"]["name"]) for d in documents}


def sudo(words: list[str]) -> None:
    while "=" in words[0]:
        export([words.pop(0)])
    path, *given = words
    program = Path(path).name
    if program.startswith("python3"):
        assert given[:2] == ["-m", "pip"]
        assert program in _packages(), f"a line installs {program}"
        pip(given[2:])
    else:
        assert program in ("dnf", "chmod", "lithify")
        {"dnf": dnf, "chmod": chmod, "lithify": lithify_itself}[program](given)


def _packages() -> set[str]:
    """What documents have a distribution's packager install."""
    asked = [line.partition(" install -y ")[2].split() for _, line in shell() if "dnf" in line.split()]
    return {word for words in asked for word in words}


def dnf(words: list[str]) -> None:
    """Packages of a Python that Lithify takes. Whether another system has them, only its repositories say."""
    assert words[:2] == ["install", "-y"]
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = tuple(map(int, made["requires-python"].removeprefix(">=").split(".")))
    for package in words[2:]:
        if package == "git":  # with which pip clones
            continue
        version = re.fullmatch(r"python(\d+)\.(\d+)(-pip)?", package)
        assert version is not None, package
        assert (int(version[1]), int(version[2])) >= least


def chmod(words: list[str]) -> None:
    """Of the folder that the lines beside it name as the cache; run it would be another machine's root."""
    *options, folder = words
    assert options == ["-R", "a+rX,go-w"]
    assert any(f"LITHIFY_CACHE_DIR={folder}" in line.split() for _, line in shell()), folder


def git(words: list[str]) -> None:
    """The address is the project's; cloned it is not: tests ask no other host."""
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words == ["clone", made["urls"]["Homepage"]]


def cd(words: list[str]) -> None:
    """Into what a clone makes."""
    assert words == [tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]]


def source(words: list[str]) -> None:
    """Of an environment that such a line has made."""
    (script,) = words
    folder, _, inside = script.partition("/")
    assert inside == "bin/activate"
    assert any(line.endswith(f" -m venv {folder}") for _, line in shell())


def venv_pack(words: list[str]) -> None:
    """What it writes is what the next line sends along. Run it is not: it would pack gigabytes, and is no
    dependency of ours."""
    assert words[0] == "-o"
    (archive,) = words[1:]
    assert any(f"--archives {archive}#" in line for _, line in shell()), archive


def openssl(words: list[str]) -> None:
    """Makes a token that is long enough; run where there is one."""
    if shutil.which("openssl") is not None:
        assert len(_said("openssl", *words).strip()) >= LEAST_TOKEN_CHARS
    assert words[:2] == ["rand", "-hex"]
    assert 2 * int(words[2]) >= LEAST_TOKEN_CHARS


def curl(words: list[str]) -> None:
    """`test_curl_is_answered` has it."""


def lithify_itself(words: list[str]) -> None:
    """`test_documents` has it."""


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "lithify": lithify_itself,
    "pip": pip,
    "%pip": pip,
    "make": make,
    "export": export,
    "spark-submit": spark_submit,
    "spark-class": spark_class,
    "python": simulation,
    "python3": simulation,
    "docker": of_cluster,
    "helm": of_cluster,
    "kubectl": of_cluster,
    "sudo": sudo,
    "curl": curl,
    "git": git,
    "cd": cd,
    ".": source,
    "venv-pack": venv_pack,
    "openssl": openssl,
}
SPARK = _find_spark_home()


@cache
def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("document", "line"), shell())
def test_lines_of_a_shell(document: str, line: str) -> None:
    assigned = re.match(r"SPARK=\$\((python.*)\)$", line)
    made = re.search(r"(?<==)\$\((.*)\)$", line) if line.startswith("export") else None
    if made is not None:
        program, *given = shlex.split(made[1])
        PROGRAMS[program](given)
        line = line.replace(made[0], "outcome")
    words = shlex.split(assigned[1] if assigned else line.replace("$SPARK/bin/", ""))
    while re.match(r"[A-Z_]+=", words[0]):
        export([words.pop(0)])
    assert words[0] in PROGRAMS, f"{document}: {line}: nothing judges it"
    PROGRAMS[words[0]](words[1:])


def test_there_are_such_lines() -> None:
    used = {line.split()[0] for _, line in shell()}
    assert {"curl", "helm", "make", "pip", "export", "spark-submit", "sudo"} <= used


def test_curl_is_answered(tmp_path: Path) -> None:
    """By a dashboard: each line as it is shown, but for its port, token and the ids, which are those of a
    database with a compaction that was cancelled."""
    url = write_database(tmp_path / "db")
    with lithify.open(url) as opened:
        submitted = opened.submit(full=True)
        submitted.cancel()
    dataset = page_of(url).removeprefix("/datasets/")
    asked = [line for _, line in shell() if line.startswith("curl")]
    assert len(asked) >= 3
    with serving.served([url], None, settled({"web.token": TOKEN, "web.port": 0})) as where:
        for line in asked:
            line = line.replace("127.0.0.1:8090", urlsplit(where).netloc).replace("/ID/", f"/{dataset}/")
            line = re.sub(r"01M7Y\w{21}", submitted.ids[0], line).replace("$TOKEN", TOKEN)
            words = shlex.split(line)
            if "--json" in words:  # an old curl does not know it
                at = words.index("--json")
                words[at : at + 2] = ["--data", words[at + 1], "-H", "Content-Type: application/json"]
            done = subprocess.run(
                [*words, "--silent", "--fail-with-body"],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"no_proxy": "*"},
                timeout=60,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert json.loads(done.stdout)
    with lithify.open(url) as opened:
        assert len(opened.status().compactions) == 1, "it was retried"


# Data


def test_every_language_has_its_judge() -> None:
    for block in blocks():
        known = block.document in RUN if block.language == "python" else block.language in JUDGED
        assert known, f"{block.document}: {block.language}: nothing judges {block.text}"


JUDGED = ("", "toml", "yaml", "json", "properties")


def of(language: str) -> list[Any]:
    found = [block for block in blocks() if block.language == language]
    assert found
    return [pytest.param(block, id=f"{block.document}-{n}") for n, block in enumerate(found)]


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_what_its_reader_takes(block: Block) -> None:
    document: dict[str, Any] = yaml.safe_load(block.text)
    match document:
        case {"apiVersion": "keda.sh/v1alpha1"}:
            known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "cooldownPeriod", "triggers"}
            assert (document["kind"], document["spec"].keys()) == ("ScaledObject", known)
            for trigger in document["spec"]["triggers"]:
                assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold"}
                assert all(isinstance(value, str) for value in trigger["metadata"].values())
        case {"apiVersion": _, "kind": _}:
            for version in KUBERNETES:
                import_module("kubernetes_validate").validate(document, version, strict=True)
        case {"catalog": {"lake": configured}}:  # of PyIceberg's file
            assert configured.keys() <= {ALLOWED, LOCATION_PROVIDER}
            assert reach_of("s3://lake/t/metadata/1.metadata.json", configured).allows("s3://archive/x")
        case {"rules": {"external": rules}}:
            for rule in rules:
                assert rule.keys() == {"seriesQuery", "resources", "metricsQuery"}
        case _:
            assert problems(merged(Chart(CHART).values, document)) == []
    made = (ROOT / "src" / "lithify" / "fleet" / "metrics.py").read_text()
    for metric in re.findall(r"\blithify_queue_(\w+)", block.text):
        assert f'"{metric}"' in made, "which tests/fleet/test_metrics.py compares with what is served"


@pytest.mark.parametrize("block", of("json"))
def test_a_line_of_the_log(block: Block, caplog: pytest.LogCaptureFixture) -> None:
    """It has the fields that such a line has."""
    shown = json.loads(block.text)
    log = EventLog(ManualClock(0))
    with caplog.at_level(logging.DEBUG, LOGGER):
        log(events.Claimed(*(_any(events.Claimed, compaction=shown["compaction"]))))
        log(events.Compacted(*(_any(events.Compacted, compaction=shown["compaction"]))))
    found = {"time", "level", "logger", "message", *caplog.records[-1].__dict__["fields"]}
    assert set(shown) == found


def _any(kind: Any, **given: Any) -> list[Any]:
    """Values for the fields of an event."""
    from dataclasses import fields

    return [given.get(field.name, 1) for field in fields(kind)]


@pytest.mark.parametrize("block", of("properties"))
def test_spark_properties(block: Block) -> None:
    for line in block.text.splitlines():
        name, value = line.split()
        assert name.startswith("spark.")
        variable = re.search(r"LITHIFY_\w+", name)
        assert not variable or variable[0] == "LITHIFY_CACHE_DIR"
        assert value.startswith("/")
