"""Supported versions of Spark, and the differences between them.

1. The version is read from PySpark's file, also inside an archive: importing PySpark would take half a
   second. A missing PySpark is reported (the distribution `lithify-core` does not include it).
2. Versions from `OLDEST` on have all that Lithify needs. The test suite runs on `OLDEST` and on the newest.
3. Spark 3 does not run on all Java versions of Spark 4, cannot read a file of settings in addition to the
   machine's, and listens on ports only.
"""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lithify.base.errors import Refused

Version = tuple[int, int]
"""Major and minor version."""
OLDEST: Version = (3, 5)
SPARK_4: Version = (4, 0)
_NEWEST_JAVA_OF_SPARK_3 = 21
"""With a later Java, Spark 3 cannot determine its user."""


def installed_version() -> Version:
    """Return the version of this process's PySpark. Raise `Refused` if there is none, or it is too old."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise Refused(
            "PySpark is not installed: `pip install lithify` installs it (`lithify-core` does not), or run "
            "this program with the platform's own spark-submit, or in its notebook"
        )
    loader: Any = found.loader
    text = loader.get_data(str(Path(found.origin).with_name("version.py"))).decode()
    assigned = re.search(r"__version__[^=\n]*=\s*[\"']([^\"']+)", text)
    return checked_version(assigned[1] if assigned else "")


def checked_version(text: str) -> Version:
    """Parse a version such as `3.5.1` into major and minor. Raise `Refused` if Lithify does not support
    it."""
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < OLDEST:
        raise Refused(f"Spark {text or 'of an unknown version'} is too old: Lithify runs on 3.5 or newer")
    return version


def newest_java(version: Version) -> int | None:
    """Return the newest Java that this Spark runs on; `None` for no limit."""
    return _NEWEST_JAVA_OF_SPARK_3 if version < SPARK_4 else None


def has_load_defaults(version: Version) -> bool:
    """Return whether `spark-submit` can read the machine's settings in addition to a file of settings."""
    return version >= SPARK_4


def stream_to(server: Any) -> Any:
    """Return a stream to a server inside the JVM (`PythonParallelizeServer`). It listens on a port, or, in
    newer versions, possibly on a Unix socket."""
    from pyspark.java_gateway import local_connect_and_auth

    takes_any = "conn_info" in inspect.signature(local_connect_and_auth).parameters
    stream, _ = local_connect_and_auth(server.connInfo() if takes_any else server.port(), server.secret())
    return stream
