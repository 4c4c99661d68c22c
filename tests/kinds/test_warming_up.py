"""`lithify warm-up` leaves nothing to compile to whoever comes after it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from lithify.kernel import fingerprint

SOURCES = Path(__file__).parents[2] / "src"
WARMED_UP = """
import json, sys
from importlib import import_module
from lithify.datasets.registry import all_registered
from lithify.api.wiring import warm_up

for kind in all_registered():
    if kind.warm_up:
        warm_up(kind)
import_module("lithify.parquet.kernel.warm_up").warm_up()  # no kind copies pages yet
print(json.dumps([
    [module, name, len(getattr(import_module(module), name).signatures)]
    for module, name in json.loads(sys.argv[1])
]))
"""


LEFT = {
    "lithify.datasets.slatedb.format.filter",
    "lithify.kernel.crc32c",
}
"""Their small functions are not all compiled ahead of time yet."""


def entries() -> list[tuple[str, str]]:
    """Every compiled function that Python calls, with its module."""
    return [
        (".".join(path.relative_to(SOURCES).with_suffix("").parts), node.name)
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(by, ast.Name) and by.id == "entry" for by in node.decorator_list)
    ]


COMPILING = {"entry", "called", "inlined", "njit", "jit", "vectorize", "cfunc"}


def compiled_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and COMPILING & set(map(called_name, node.decorator_list))
    ]


def called_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=function):
            return called_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def imported(tree: ast.Module) -> dict[str, Path]:
    """The modules of Lithify that names come from, by name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lithify"):
            for alias in node.names:
                place = SOURCES.joinpath(*node.module.split("."))
                module = (place / alias.name).with_suffix(".py")
                found[alias.asname or alias.name] = module if module.exists() else place.with_suffix(".py")
    return found


def test_compiled_code_is_compiled_anew_when_it_changes() -> None:
    """The folder of the machine code has a hash of every module with compiled code, and of every module whose
    constants and functions it uses."""
    hashed = set(fingerprint._sources())
    compiled = 0
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = compiled_functions(tree)
        compiled += len(functions)
        names = imported(tree)
        used = {
            names[n.id] for f in functions for n in ast.walk(f) if isinstance(n, ast.Name) and n.id in names
        }
        needed = used | ({path} if functions else set())
        assert needed <= hashed, f"{path}: {sorted(map(str, needed - hashed))}"
    assert compiled > 100


def test_every_compiled_function_is_compiled_for_one_kind_of_arguments() -> None:
    found = entries()
    assert len(found) > 20
    command = [sys.executable, "-c", WARMED_UP, json.dumps(found)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [one for one in json.loads(answer.stdout) if one[2] != 1 and one[0] not in LEFT] == []
