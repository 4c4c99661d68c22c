"""Which tasks may run at once, and which have to wait for which.

Two tasks that share a file must not run together: the first one rewrites the file whole, and the
second would read what is no longer there. Tasks come in order of time.

With one dependency (the plain form):
1. A task that shares no file with an earlier one is red.
2. Any other is black and waits for the last of the earlier ones it shares with. In a row of tasks where
   each shares with the next, each waits for the one before: they run one by one.

With several dependencies (the refinement):
1. A task that shares no file with an earlier red one is red.
2. Any other is black, and waits for all red tasks it shares with, earlier or later, and for all earlier
   black ones. In such a row every other task is red, and the whole takes two rounds.

Invariants: of two tasks that share a file one waits for the other, directly or through others; nobody
waits for himself, directly or through others; red tasks wait for no planned task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lithify.planning.timeline.model import ActiveTask, Color, Task


def conflicts(tasks: Sequence[Sequence[str]]) -> list[set[int]]:
    """For each task, given by its files, the indexes of the tasks it shares a file with."""
    users: dict[str, list[int]] = {}
    for index, files in enumerate(tasks):
        for file in files:
            users.setdefault(file, []).append(index)
    shared: list[set[int]] = [set() for _ in tasks]
    for group in {tuple(indexes) for indexes in users.values() if len(indexes) > 1}:
        for index in group:
            shared[index].update(group)
    for index, others in enumerate(shared):
        others.discard(index)
    return shared


def dependencies(shared: Sequence[set[int]], *, several: bool) -> list[set[int]]:
    """For each task the indexes of those it waits for; red ones have none."""
    if not several:
        earlier = ({other for other in others if other < index} for index, others in enumerate(shared))
        return [{max(others)} if others else set() for others in earlier]
    red: set[int] = set()
    for index, others in enumerate(shared):
        if not others & red:
            red.add(index)
    return [
        set() if index in red else {other for other in others if other in red or other < index}
        for index, others in enumerate(shared)
    ]


def paint(tasks: Sequence[Task], active: Sequence[ActiveTask], *, several: bool) -> tuple[Task, ...]:
    """The tasks, given in order of time, with color and predecessors, the most urgent first.

    A task that shares a file with an active one is black and waits for it too. A task is at least as
    urgent as every task that waits for it.
    """
    before = dependencies(conflicts([task.files for task in tasks]), several=several)
    priorities = [task.priority for task in tasks]
    for index in reversed(range(len(tasks))):  # whoever waits for a black task comes later than that
        for other in before[index]:
            priorities[other] = max(priorities[other], priorities[index])
    in_use: dict[str, set[str]] = {}
    for work in active:
        for file in work.files:
            in_use.setdefault(file, set()).add(work.key)
    painted = []
    for task, others, priority in zip(tasks, before, priorities, strict=True):
        after = {tasks[other].key for other in others}
        for file in task.files if in_use else ():
            after |= in_use.get(file, set())
        color = Color.BLACK if after else Color.RED
        painted.append(replace(task, color=color, after=tuple(sorted(after)), priority=priority))
    order = sorted(range(len(tasks)), key=lambda i: (-priorities[i], painted[i].color is Color.BLACK, i))
    return tuple(painted[index] for index in order)
