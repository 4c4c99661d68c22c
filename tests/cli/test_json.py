"""What `--json` prints is what docs/json.md says, for every command that has it. No Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lithify.cli.doctor import UNHEALTHY
from lithify.protocol.lease import Lease
from tests.cli.invoking import COMMAND, invoke
from tests.compacting import dataset_at
from tests.datasets.iceberg.running import dataset_of
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.datasets.kafka.test_commands import make_log
from tests.fuzz.running import run as without_spark
from tests.judge.official import Put, open_db
from tests.ledgers import take_epoch

ROOT = Path(__file__).parents[2]
DATABASE, TABLE, LOG = "a database", "a table", "a log"


def documented() -> Mapping[tuple[str, str], list[str]]:
    """The fields of each command's document, on a database, on a table and on a log."""
    text = (ROOT / "docs" / "json.md").read_text()
    found: dict[tuple[str, str], list[str]] = {}
    for line in re.findall(r"^\| `.*$", text, re.MULTILINE):
        heads, fields = line.strip("| ").split(" | ")
        names = re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", fields))
        for head in re.findall(r"`([^`]+)`", heads):
            for kind in (k for k in (DATABASE, TABLE, LOG) if f"of {k}" in heads or " of " not in heads):
                same = found[head, DATABASE] if fields.startswith("the same") else []
                without = names if "without" in fields else []
                found[head, kind] = [n for n in same if n not in without] + (names if not without else [])
    return found


def fields_of(document: Any) -> list[str]:
    """The names in a document, or in each of a list."""
    return list(document) if isinstance(document, dict) else list(document[0])


def run(command: str, *arguments: str | Path) -> Any:
    result = invoke(*command.split(), *arguments, "--json")
    assert result.exit_code in (0, 1, UNHEALTHY), result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database and a table in which nothing is due, whose coordinators have stopped."""
    folder = tmp_path_factory.mktemp("json")
    with open_db(folder / "db") as database:
        database.write_batch([Put(b"k", b"v")])
        database.flush()
    take_epoch(dataset_at(folder / "db"))
    table = new_table(new_catalog(folder, name="lake"))
    append(table, make_rows(3))
    dataset_of(table).take_epoch()
    return folder


@pytest.mark.parametrize("kind", [DATABASE, TABLE])
def test_documents_are_as_documented(place: Path, kind: str) -> None:
    if kind == TABLE:
        at: list[str | Path] = [
            "iceberg://lake/db.events",
            "--store-option",
            f"uri=sqlite:///{place}/catalog.db",
        ]
        wanted: list[str] = ["--chunk", "2025-01-01"]
    else:
        at, wanted = [place / "db"], ["--full"]
        dataset = dataset_at(place / "db")
        epoch = dataset.snapshot().compactor_epoch
        dataset.lease.write(Lease("lithify-1", is_ended=True, taken=epoch), dataset.lease.look())
    said = {name: run(name, *at) for name in ("plan", "status", "gc", "compact")}
    said["submit"] = run("submit", *at, *wanted)
    (compaction,) = said["submit"]["submitted"]
    said["cancel"] = run("cancel", *at, compaction)
    said["wait"] = run("wait", *at, compaction)
    said["retry"] = run("retry", *at, compaction)
    (found,) = run("status", *at)["compactions"]
    assert {"id", "unit", "state", "since_ms", "worker", "is_stale", "share_done", "waits_for"} <= set(found)
    said["doctor"] = run("doctor", *at, "--read-only")
    if kind == TABLE:
        said["expire"] = run("expire", *at, "--dry-run")
        said["remove-orphans"] = run("remove-orphans", *at)
        said["maintain"] = run("maintain", *at, "--skip", "data")
        said["rewrite-equality-deletes"] = run("rewrite-equality-deletes", *at, "--dry-run")
        said["rewrite-position-delete-files"] = run("rewrite-position-delete-files", *at, "--dry-run")
        said["rewrite-manifests"] = run("rewrite-manifests", *at, "--dry-run")
        said["hold"] = run("hold", *at)
        said["readers list"] = run("readers list", *at)
    fields = documented()
    for name, document in said.items():
        assert fields_of(document) == fields[name, kind], f"{name} of {kind}"


def test_documents_of_logs_and_of_their_groups(tmp_path: Path) -> None:
    url, group = f"kafka+file://{make_log(tmp_path / 'orders-0')}", tmp_path / "group"
    said = {name: run(name, url) for name in ("plan", "status", "gc", "history", "inspect segments")}
    said["doctor"] = run("doctor", url, "--read-only")
    said["compact"] = json.loads(without_spark(["compact", "--json", url]).stdout)
    said["group init"] = run("group init", "--members", "eu", group)
    said["group expect"] = run("group expect", group, "us")
    said["group join"] = run("group join", "--at", "0=5", group, "reader")
    said["group show"] = run("group show", group)
    said["group leave"] = run("group leave", group, "reader")
    fields = documented()
    for name, document in said.items():
        assert fields_of(document) == fields[name, LOG], name


def test_documents_of_databases_and_of_settings(place: Path) -> None:
    assert fields_of(run("config show")) == documented()["config show", DATABASE]
    (sst,) = (place / "db" / "compacted").glob("*.sst")
    assert run("inspect manifest", place / "db")["initialized"]
    assert run("inspect compactions", place / "db")["compactions"] is not None
    assert run("inspect sst", sst)["puts"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "--json"], "Missing argument"),
        (["plan", "--json", "--no-such", "x"], "No such option"),
        (["history", "--last", "x", "y", "--json"], "Invalid value for '--last'"),
        (["fleet", "status", "--json"], "Missing argument"),
        (["no-such", "--json"], "No such command"),
        (["--no-such", "plan", "--json"], "No such option"),
    ],
)
def test_what_is_wrong_with_the_words_of_a_command_is_a_document(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert (document["error"], says in document["message"]) == ("UsageError", True), document
    assert says in result.stderr
    assert invoke(*(a for a in arguments if a != "--json")).stdout == ""
    assert invoke("plan", "--", "--json", "x").stdout == ""


def test_every_command_with_json_is_documented() -> None:
    with_json = {name for name, sub in leaves(COMMAND) if any("--json" in p.opts for p in sub.params)}
    assert with_json == {name for name, _ in documented()}


def leaves(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The commands in a group and in its groups, by their whole names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command
