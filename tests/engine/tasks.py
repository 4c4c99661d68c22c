"""Functions that tests run inside Spark tasks."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
import uuid
from pathlib import Path

import numba

from lithify.base.errors import CorruptObject, LithifyError, StoreError


def double(value: int) -> int:
    return 2 * value


def objects_a_collection_walks_through(_: object) -> tuple[int, int]:
    """In this process: how many it does, and how many are spared."""
    return len(gc.get_objects()), gc.get_freeze_count()


def note_attempt(folder: str) -> int:
    """Write down that an attempt began; returns how many have."""
    (Path(folder) / uuid.uuid4().hex).touch()
    return attempts(folder)


def attempts(folder: str | Path) -> int:
    return len(list(Path(folder).iterdir()))


def fail_corrupt(folder: str) -> None:
    note_attempt(folder)
    raise CorruptObject("db/manifest/1", "bad checksum")


def fail_store_always(folder: str) -> None:
    note_attempt(folder)
    raise StoreError("the bucket is gone")


def fail_store_once(folder: str) -> str:
    if note_attempt(folder) == 1:
        raise StoreError("the network blinked")
    return "second attempt"


def fail_foreign(text: str) -> None:
    raise ValueError(text)


def fail_with_cause(text: str) -> None:
    try:
        raise OSError(text)
    except OSError as error:
        raise StoreError(f"get object: {text}") from error


class Unpicklable(LithifyError):
    """Cannot be pickled: it holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def fail_unpicklable(text: str) -> None:
    raise Unpicklable(text)


def kill_worker_once(folder: str) -> str:
    """The Python worker dies in the first attempt."""
    if note_attempt(folder) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def kill_worker_always(folder: str) -> None:
    note_attempt(folder)
    os.kill(os.getpid(), signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_executor_once(folder: str) -> tuple[str, int]:
    """The executor's JVM, which is the parent of the daemon, dies in the middle of the first task."""
    executor = parent_of(os.getppid())
    if note_attempt(folder) == 1:
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)
    return "survived", executor


def sleep_noted(argument: tuple[str, float]) -> int:
    """Write down this process's id, then sleep."""
    folder, duration_s = argument
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(duration_s)
    return os.getpid()


def process_of(_: int) -> int:
    return os.getpid()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def many_bytes(count: int) -> bytes:
    return b"x" * count


def a_lock(_: int) -> object:
    return threading.Lock()


@numba.njit(nogil=False)  # type: ignore[untyped-decorator]  # numba has no types
def _spin(rounds: int) -> int:
    total = 0
    for i in range(rounds):
        total = (total * 31 + i) % 1_000_003
    return total


def spin_in_kernel(folder: str) -> int:
    """Compiled code that holds the interpreter's lock for minutes."""
    _spin(1)
    (Path(folder) / str(os.getpid())).touch()
    return int(_spin(200_000_000_000))


preloaded = False


def preload_hook() -> None:
    global preloaded
    preloaded = True
    print("a preload hook that prints must not disturb Spark's protocol")


def memory_hook() -> None:
    """Say on standard error how many heaps there are."""
    ctypes.CDLL(None).malloc_stats()


def was_preloaded(_: int) -> bool:
    return preloaded


def daemon_has_numba(_: int) -> bool:
    """Whether the process that forked this one had loaded what tasks need."""
    maps = Path(f"/proc/{os.getppid()}/maps").read_text()
    return "numba" in maps and "pyarrow" in maps


def threading_hook() -> None:
    """A preload hook that must not be: its thread would be missing in every worker."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def sleep_with_secret(argument: tuple[str, float, str]) -> None:
    """`sleep_noted` with a secret among what travels to the task."""
    folder, seconds, _secret = argument
    sleep_noted((folder, seconds))
