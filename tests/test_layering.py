"""Imports point down only: the contracts of pyproject.toml. Nor does anything but a kind know its words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_point_down_only() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


KEEP_THREADS = {
    "api/wiring.py",
    "engine/spark.py",
    "store/direct.py",
    "datasets/slatedb/kernel/outputs.py",
    "datasets/slatedb/kernel/read_ahead.py",
}
"""Each has threads as long as what owns them lives, which ends them itself."""


def test_only_what_lives_long_has_a_pool_of_threads() -> None:
    """A pool holds up an interrupt, and the end of the process, until all that was begun in it has ended.
    What only wants requests to go out together uses `base.concurrency`, which does not."""
    root = ROOT / "src" / "lithify"
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "ThreadPoolExecutor" in set(names_in(path.read_text()))
    }
    assert found == KEEP_THREADS


WORDS = re.compile(r"slatedb|iceberg|kafka|(?:^|_)l0(?:_|$)", re.IGNORECASE)
KINDS = (
    "datasets/slatedb/",
    "datasets/iceberg/",
    "datasets/kafka/",
    "datasets/registry.py",
)


def names_in(source: str) -> Iterator[str]:
    """Every name that a module defines or uses, and every string that could be one."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
                yield name
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w./:-]+", text):
                yield text


def test_only_a_kind_knows_its_words() -> None:
    """Texts for people may name them."""
    root = ROOT / "src" / "lithify"
    found = set()
    for path in root.rglob("*.py"):
        module = path.relative_to(root).as_posix()
        if not module.startswith(KINDS):
            found |= {(module, name) for name in names_in(path.read_text()) if WORDS.search(name)}
    assert found == set()


def test_a_class_name_has_one_owner() -> None:
    """One name, one concept. Kinds do not know each other, so each may have its own `RewriteTask`."""
    root = ROOT / "src" / "lithify"
    owners: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        module = path.relative_to(root).as_posix()
        room = next((kind for kind in KINDS if module.startswith(kind)), "elsewhere")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, set()).add(module if room == "elsewhere" else room)
    assert {name: where for name, where in owners.items() if len(where) > 1 and _is_shared(where)} == {}


def _is_shared(owners: set[str]) -> bool:
    return any(not owner.endswith("/") for owner in owners)
