"""Which outputs of a compaction stand for which of its inputs (pure).

1. An output names the inputs its rows came from (`NewFile.sources`): those that had a row in its piece.
2. Inputs and outputs that are linked by that, directly or through others, make a component.
3. So the rows of a component's outputs are exactly those of its inputs: every row of an input went to one
   output that names it, and no output has a row of an input of another component.
4. Inputs that a task has left alone are linked as those of an output; their component says why, and is not to
   be published.

Each component can be published or left out by itself, and the table has the same rows either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lithify.datasets.iceberg.model import LeftAlone, NewFile, Output


@dataclass(frozen=True, slots=True)
class Component:
    """Inputs, and the outputs with their rows. No outputs where all rows of the inputs were deleted."""

    inputs: tuple[str, ...]
    outputs: tuple[NewFile, ...]
    left: str | None = None
    """Why its inputs stay as they are, if a task could not rewrite some of them."""


def components(inputs: Sequence[str], outputs: Sequence[Output]) -> tuple[Component, ...]:
    """The components, in the order of their first inputs. An output that does not say where its rows came
    from, or names what is no input, may have rows of all."""
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
