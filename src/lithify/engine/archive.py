"""The class archive (AppCDS), which makes Spark's JVM start in less than half the time.

1. An archive belongs to one Java and one Spark; both are in its name. The JVM checks the archive again and
   ignores it if it does not fit or its checksum is wrong.
2. A session that finds no archive starts without one. When it closes, it starts a process of low priority
   (`archive_builder`) that builds the archive and outlives this process, so that no command waits for it.
3. A note in the same folder keeps a builder from being started again within `RETRY_AFTER_S`, so that one that
   cannot succeed costs little.
4. When a session closes, archives and notes that were not used for long are removed.

Invariant: an archive appears under its name complete or not at all, and everything works without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from lithify.base.permissions import why_unsafe
from lithify.base.usercache import mark_used, remove_unused, write_atomically
from lithify.engine.java import Java

RETRY_AFTER_S = 24 * 3600
BUILDER_MODULE = "lithify.engine.archive_builder"


def archive_path(cache: Path, java: Java, spark_home: Path, spark_version: str) -> Path:
    """Return the path of the archive for this Java and this Spark."""
    homes = hashlib.sha256(b"\0".join((bytes(java.home), bytes(spark_home)))).hexdigest()[:16]
    return cache / "spark-archives" / f"spark-{spark_version}-java-{java.version}-{homes}.jsa"


def existing(path: Path) -> Path | None:
    """Return the archive if it exists, and record its use. An archive that other users could have written is
    ignored, because the JVM runs its code."""
    try:
        if not path.is_file() or why_unsafe(path) is not None:
            return None
    except OSError:
        return None
    mark_used(path)
    return path


def discard(path: Path) -> None:
    """Remove an archive with which the JVM did not start."""
    path.unlink(missing_ok=True)


def build_in_background(path: Path) -> subprocess.Popen[bytes] | None:
    """Start the builder unless the archive exists or was tried recently. Return its process."""
    note = path.with_suffix(".attempt")
    try:
        remove_unused(path.parent, "spark-*", time.time())
        if path.exists() or (note.exists() and time.time() - note.stat().st_mtime < RETRY_AFTER_S):
            return None
        write_atomically(note, b"", 0o644)
        return subprocess.Popen(
            [sys.executable, "-m", BUILDER_MODULE, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
    except OSError:
        return None  # read-only cache folder: the next start is as slow as this one
