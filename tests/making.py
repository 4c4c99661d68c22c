"""What is made once on a machine before the first test needs it: compiled kernels, and the archive of Spark's
classes.

1. Each is made by a process of its own under a lock of its own, unless it is there already.
2. Who finds a lock taken goes on to the next thing first, and waits in a second round. So of several
   processes that run tests each makes another thing, and none makes what another has made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lithify
from lithify.base.usercache import cache_folder
from lithify.kernel import fingerprint


@dataclass(frozen=True)
class Made:
    """Something that is kept in the cache folder."""

    name: str
    code: str
    """What makes it."""
    is_there: Callable[[], bool]


def kernel(kind: str, warm_up: str) -> Made:
    """The compiled code of a kind; `warm_up` is the module whose function of that name compiles it. Numba
    keeps it by the path of its source: where another checkout has compiled the same, this one has nothing."""
    place = hashlib.sha256(lithify.__file__.encode()).hexdigest()[:8]
    mark = f"{kind}-for-tests-at-{place}"
    code = (
        f"import os; from lithify.kernel import fingerprint; from {warm_up} import warm_up; warm_up(); "
        f"fingerprint.mark_compiled(str(fingerprint.kernel_folder(os.environ)), {mark!r})"
    )
    return Made(mark, code, partial(fingerprint.is_compiled, os.environ, mark))


def class_archive(path: Path) -> Made:
    """The archive without which each of the many JVMs of Spark takes twice as long to start. It makes itself
    in the background, at the lowest priority, which beside tests may take for ever."""
    code = (
        "from pathlib import Path; from lithify.engine.archive_builder import build; "
        f"build(Path({str(path)!r}))"
    )
    return Made(path.name, code, path.exists)


def make(needed: Sequence[Made]) -> None:
    """Make what is not there. What cannot be made the tests that need it will tell of."""
    left = [made for made in needed if not made.is_there()]
    for waits in (False, True):
        for made in list(left):
            with _locked(made.name, waits=waits) as is_mine:
                if is_mine:
                    left.remove(made)
                    if not made.is_there():
                        subprocess.run([sys.executable, "-c", made.code], check=False)


@contextmanager
def _locked(name: str, *, waits: bool) -> Iterator[bool]:
    """Whether the lock was taken; ends with the block, and with the process."""
    folder = cache_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"making-{name}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
