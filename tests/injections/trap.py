"""What must not be touched, and how that is noticed.

Python's own calls are seen by an audit hook: imports, files, programs, connections. Libraries in C and Rust
raise no such events, so files are watched by the kernel (inotify), and a port counts who connects.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.injections.texts import MODULE

_ALL_EVENTS = 0x00000001 | 0x00000002 | 0x00000004 | 0x00000020 | 0x00000100 | 0x00000200 | 0x00000040
"""Read, written, its attributes changed, opened, created, deleted, moved."""
_NONBLOCK = os.O_NONBLOCK
_EVENT = struct.Struct("iIII")
_FILES = ("canary.json", "canary.parquet", "canary.avro", "canary.jar")
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
_IMPORTS_NEVER = (MODULE, "pydoc", "pdb", "antigravity")

_watching: list[Trap] = []
_is_hooked = False


class Trap:
    """One trap, in a folder of its own. Use as a context; `sprung` says what touched it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sprung: list[str] = []
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Trap:
        self.folder.mkdir(parents=True)
        for name in _FILES:
            (self.folder / name).write_text('{"secret": "TRAPPED"}')
        (self.folder / f"{MODULE}.py").write_text("raise SystemExit('sprung')\n")
        self._notify = self._libc.inotify_init1(_NONBLOCK)
        assert self._notify >= 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        sys.path.append(str(self.folder))
        assert self._libc.inotify_add_watch(self._notify, os.fsencode(self.folder), _ALL_EVENTS) >= 0
        return self

    def __exit__(self, *_: object) -> None:
        sys.path.remove(str(self.folder))
        self._listener.close()
        os.close(self._notify)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.sprung.append("connected to its port")
            connection.close()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice what is done inside."""
        _hook()
        self.sprung.clear()
        self._events()
        _watching.append(self)
        try:
            yield
        finally:
            _watching.remove(self)
            self.sprung += self._events()

    def _events(self) -> list[str]:
        """The files that were touched. Importing looks into each folder of the path, which reads no file."""
        found: list[str] = []
        while True:
            try:
                data = os.read(self._notify, 1 << 16)
            except BlockingIOError:
                return sorted(set(found))
            start = 0
            while start < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, start)
                name = data[start + _EVENT.size : start + _EVENT.size + length].rstrip(b"\0").decode()
                if name:
                    found.append(f"{name} was touched ({mask:#x})")
                start += _EVENT.size + length

    def saw(self, event: str, arguments: tuple[object, ...]) -> None:
        """Called for all that Python does."""
        what = repr(arguments)[:300]
        if event in _PROGRAMS:
            self.sprung.append(f"{event}: {what}")
        elif event == "import" and str(arguments[0]).split(".")[0] in _IMPORTS_NEVER:
            self.sprung.append(f"import: {what}")
        elif event == "open" and str(self.folder) in str(arguments[0]):
            self.sprung.append(f"open: {what}")
        elif event == "socket.connect" and f"{self.port}" in what:
            self.sprung.append(f"connect: {what}")


def _hook() -> None:
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_saw)


def _saw(event: str, arguments: tuple[object, ...]) -> None:
    for trap in _watching:
        trap.saw(event, arguments)
