"""Components of a compaction: which outputs replace which inputs (pure).

1. An output names the inputs that its rows came from (`NewFile.sources`): those that had a row in its piece.
2. Inputs and outputs that are linked this way, directly or through others, form a component.
3. So the rows of a component's outputs are exactly those of its inputs: every row of an input is in one
   output that names the input, and no output has a row of another component's input.
4. Inputs that a task has skipped are linked like those of an output; their component records why, and is not
   published.

Each component can be published or dropped separately; the table has the same rows either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lithify.datasets.iceberg.model import LeftAlone, NewFile, Output


@dataclass(frozen=True, slots=True)
class Component:
    """Inputs, and the outputs with their rows. Without outputs, all rows of the inputs were deleted."""

    inputs: tuple[str, ...]
    outputs: tuple[NewFile, ...]
    left: str | None = None
    """Why its inputs are kept as they are, if a task could not rewrite some of them."""


def components(inputs: Sequence[str], outputs: Sequence[Output]) -> tuple[Component, ...]:
    """Return the components, in the order of their first inputs. An output that does not name its sources, or
    names an unknown input, may have rows of all inputs."""
    roots = list(range(len(inputs) + len(outputs)))

    def root_of(node: int) -> int:
        while roots[node] != node:
            roots[node] = roots[roots[node]]
            node = roots[node]
        return node

    for node, output in enumerate(outputs, start=len(inputs)):
        sources: Sequence[int] = output.sources or ()
        if not sources or not all(0 <= source < len(inputs) for source in sources):
            sources = range(len(inputs))
        for source in sources:
            one, two = sorted((root_of(source), root_of(node)))
            roots[two] = one
    members: dict[int, tuple[list[str], list[Output]]] = {}
    for node in range(len(roots)):
        found = members.setdefault(root_of(node), ([], []))
        if node < len(inputs):
            found[0].append(inputs[node])
        else:
            found[1].append(outputs[node - len(inputs)])
    return tuple(_component(paths, members) for paths, members in members.values())


def _component(paths: Sequence[str], outputs: Sequence[Output]) -> Component:
    files = tuple(output for output in outputs if isinstance(output, NewFile))
    left = next((output.reason for output in outputs if isinstance(output, LeftAlone)), None)
    return Component(tuple(paths), files, left)
