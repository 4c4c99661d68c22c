"""A slice of `make injections`, and that the harness sees what is wrong."""

from __future__ import annotations

import importlib
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
import pyarrow.fs
import pytest
from pyiceberg.io import FileIO, load_file_io

from lithify.datasets.iceberg.io.closed_catalogs import ClosedCatalog
from lithify.datasets.iceberg.io.reach import Reach
from tests.fuzz.running import run
from tests.injections import texts
from tests.injections.judging import PAGES, play, printed_badly
from tests.injections.places import Nowhere, inject
from tests.injections.trap import Trap
from tests.injections.worlds import DATASET, WORLDS, World, copied, made

SEED, CASES = 7, 30


@pytest.fixture(scope="module", params=list(WORLDS.values()), ids=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.param
    return found


@pytest.fixture(scope="module")
def prepared(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(world.name)
    made(world, folder / "prepared", folder / "place")
    return folder


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    with Trap(tmp_path / "trap") as made_trap:
        yield made_trap


@pytest.mark.timeout(250)
def test_texts_are_data(world: World, prepared: Path, trap: Trap, defects: list[str]) -> None:
    for case in range(CASES):
        verdict = play(world, prepared / "prepared", prepared / "place", trap, SEED, case)
        assert not verdict.problems, verdict
    defects.clear()  # judged case by case


def test_without_a_text_every_command_does_its_work(world: World, prepared: Path, trap: Trap) -> None:
    """So that a text meets more than a refusal."""
    with mock.patch("tests.injections.judging._put", return_value="nowhere"):
        for command in (*world.commands, PAGES):
            verdict = play(world, prepared / "prepared", prepared / "place", trap, SEED, 0, command)
            assert not verdict.problems, verdict
            assert verdict.exit_code in (None, 0, 9, 10), verdict  # not done in time, findings


def test_the_same_case_puts_the_same_text_to_the_same_place(world: World, prepared: Path, trap: Trap) -> None:
    found = [play(world, prepared / "prepared", prepared / "place", trap, SEED, 3).where for _ in range(2)]
    assert found[0] == found[1]
    assert copied(world, prepared / "prepared", prepared / "place").root.exists()


def _with_all_properties(self: ClosedCatalog, properties: Any = None, location: str | None = None) -> FileIO:
    return load_file_io({**self.properties, **(properties or {})}, location)


BROKEN: dict[str, tuple[str, str, type[object], str, Any]] = {
    "properties.key": ("code", "plan", ClosedCatalog, "_load_file_io", _with_all_properties),
    "data_file.file_path": ("path", "compact --take-over", Reach, "allows", lambda *_: True),
}
"""By field: what is put there, the command that meets it, and the rule that is broken."""


@pytest.mark.parametrize("field", BROKEN)
def test_a_broken_rule_is_noticed(tmp_path: Path, trap: Trap, field: str) -> None:
    kind, command, owner, rule, broken = BROKEN[field]
    world = WORLDS["tables"]
    made(world, tmp_path / "prepared", tmp_path / "place")

    def is_sprung(seed: int) -> bool:
        rng = random.Random(seed)
        copy = copied(world, tmp_path / "prepared", tmp_path / "place")
        for path in (copy.root / "db" / "events" / "metadata").iterdir():
            with suppress(Nowhere):
                inject(path, rng, lambda: texts.text(kind, rng, trap.folder, trap.port), field)
        with trap.watching(), suppress(SystemExit):
            run([*command.split(), copy.names[DATASET], *copy.options])
        return bool(trap.sprung)

    with mock.patch.object(owner, rule, broken):
        seed = next(filter(is_sprung, range(20)))
    assert not is_sprung(seed)


TOUCHES: dict[str, Callable[[Trap], object]] = {
    "a file that Python opens": lambda trap: (trap.folder / "canary.json").read_text(),
    "a file that a library in C opens": lambda trap: (
        pyarrow.fs.LocalFileSystem().open_input_stream(str(trap.folder / "canary.parquet")).read()
    ),
    "a file that a library in Rust opens": lambda trap: obstore.get(
        obstore.store.LocalStore(str(trap.folder)), "canary.avro"
    ).bytes(),
    "a file that is made": lambda trap: (trap.folder / "made").touch(),
    "a file that is deleted": lambda trap: (trap.folder / "canary.jar").unlink(),
    "an import": lambda trap: importlib.import_module(texts.MODULE),
    "a program": lambda trap: subprocess.run([sys.executable, "-c", ""], check=True),
    "a connection": lambda trap: socket.create_connection(("127.0.0.1", trap.port)).close(),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_a_trap_notices(trap: Trap, touch: Callable[[Trap], object]) -> None:
    with trap.watching(), suppress(SystemExit):
        touch(trap)
    assert trap.sprung


def test_a_trap_notices_nothing_else(trap: Trap, tmp_path: Path) -> None:
    with trap.watching():
        (tmp_path / "other").write_text("x")
        importlib.import_module("json")
        with suppress(ModuleNotFoundError):
            importlib.import_module("no_such_module_anywhere")
    assert trap.sprung == []


@pytest.mark.parametrize("kind", ["escape", "line"])
def test_what_is_printed_raw_is_found(kind: str, tmp_path: Path) -> None:
    for text in texts._TEXTS[kind](tmp_path, 1):
        if text.startswith(("\u200b", "\U000e0001")):
            continue  # harmless on a terminal: nothing is drawn
        out = f"table db.events: {text} is odd\n"
        assert list(printed_badly(out)), repr(text)
    assert list(printed_badly("x" * 500_000))
    assert list(printed_badly("all is well\n\tindented ä 🪨\n")) == []
