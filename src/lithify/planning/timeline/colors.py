"""Dependencies between tasks: which may run at once, and which wait for which.

Two tasks that share a file must not run together: the first one rewrites the file whole, and the second would
read a file that no longer exists. Tasks are ordered by time and do not interleave, and a file covers one
stretch of time. So a file that two tasks share is an input of all tasks between them too, and it is enough to
wait for the nearest ones that share. Tasks of several groups share no file with any other.

With one dependency (the plain form):

1. A task that shares no file with the one before is red.
2. Any other is black and waits for the one before. In a row of tasks where each shares with the next, they
run one by one.

With several dependencies (the refinement):

1. A task that shares no file with the last red one is red.
2. Any other is black, and waits for the red task before it, for the red one after it if they share, and for
the black one before it if they share. In such a row every other task is red, and the whole takes two rounds.

Invariants: of two tasks that share a file one waits for the other, directly or through others; no task waits
for itself, directly or through others; red tasks wait for no planned task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lithify.planning.timeline.model import ActiveTask, Color, Task


def first_sharing(tasks: Sequence[Sequence[str]]) -> list[int]:
    """Return, for each task, given by its files, the index of the first task that shares a file with it."""
    first: dict[str, int] = {}
    return [
        min((first.setdefault(file, index) for file in files), default=index)
        for index, files in enumerate(tasks)
    ]


def dependencies(first: Sequence[int], *, several: bool) -> list[set[int]]:
    """Return, for each task, the indexes of its predecessors; red ones have none. `first` has the index of
    the first task that shares a file with each."""
    if not several:
        return [{index - 1} if shared < index else set() for index, shared in enumerate(first)]
    before: list[set[int]] = []
    last_red = last_black = -1
    for index, shared in enumerate(first):
        if last_red < shared:
            before.append(set())
            for other in range(max(shared, last_red + 1), index):
                before[other].add(index)
            last_red = index
        else:
            before.append({other for other in (last_red, last_black) if other >= shared})
            last_black = index
    return before


def paint(tasks: Sequence[Task], active: Sequence[ActiveTask], *, several: bool) -> tuple[Task, ...]:
    """Return the tasks, given in order of time, with color and predecessors, the most urgent first.

    A task that shares a file with an active one is black and waits for it too. A task is at least as urgent
    as every task that waits for it.
    """
    before = dependencies(first_sharing([task.files for task in tasks]), several=several)
    priorities = [task.priority for task in tasks]
    for index in reversed(range(len(tasks))):  # tasks that wait for a black task come later than it
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
