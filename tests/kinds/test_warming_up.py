"""`lithify warm-up` leaves nothing to compile to whoever comes after it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
WARMED_UP = """
import json, sys
from importlib import import_module
from lithify.datasets.registry import all_registered
from lithify.api.wiring import warm_up

for kind in all_registered():
    if kind.warm_up:
        warm_up(kind)
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


def test_every_compiled_function_is_compiled_for_one_kind_of_arguments() -> None:
    found = entries()
    assert len(found) > 20
    command = [sys.executable, "-c", WARMED_UP, json.dumps(found)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [one for one in json.loads(answer.stdout) if one[2] != 1 and one[0] not in LEFT] == []
