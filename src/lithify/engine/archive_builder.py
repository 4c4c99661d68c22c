"""Build a class archive: `python -m lithify.engine.archive_builder ARCHIVE`.

1. Start a local session that records the classes it loads, run one task, stop it.
2. Let Java write an archive of these classes under another name, and rename it.

Invariants: the builder runs at the lowest priority, each step has a time limit, and the next builder removes
the files that a killed one leaves in the cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lithify.base.permissions import make_private
from lithify.base.scratch import Scratch
from lithify.engine.classic import open_classic
from lithify.engine.task import Limits, encode_request

_DUMP_LIMIT_S = 300
LOWEST_PRIORITY = 19


def build(path: Path) -> None:
    with Scratch() as scratch:
        classes = scratch.path / "classes"
        java_home, class_path = _record(classes)
        make_private(path.parent)
        for left_behind in path.parent.glob(f"{path.stem}.*.staged"):
            left_behind.unlink(missing_ok=True)
        staged = path.with_suffix(f".{os.getpid()}.staged")
        try:
            _dump(java_home, classes, class_path, staged)
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)


def _record(classes: Path) -> tuple[Path, str]:
    """Run a session that lists its classes. Return its Java home and class path."""
    recording = open_classic(
        "local[1]", "lithify-archive", jvm_options=(f"-XX:DumpLoadedClassList={classes}",), use_archive=False
    )
    try:
        request = encode_request(abs, -1, Limits(max_attempts=1, time_limit_s=60))
        recording.run(request, tag="archive", pool="archive", description="archive")
        return recording.java_home, recording.system_property("java.class.path")
    finally:
        recording.close()


def _dump(java_home: Path, classes: Path, class_path: str, archive: Path) -> None:
    command = [
        str(java_home / "bin" / "java"),
        "-Xshare:dump",
        "-XX:+UseSerialGC",
        "-XX:+VerifySharedSpaces",
        f"-XX:SharedClassListFile={classes}",
        f"-XX:SharedArchiveFile={archive}",
        "-cp",
        class_path,
    ]
    quiet = subprocess.DEVNULL
    subprocess.run(command, check=True, timeout=_DUMP_LIMIT_S, stdin=quiet, stdout=quiet, stderr=quiet)


if __name__ == "__main__":
    os.nice(LOWEST_PRIORITY)
    build(Path(sys.argv[1]))
