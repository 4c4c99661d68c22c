"""Which versions of Spark work, and what differs between them.

1. The version is read from PySpark's own file, also where that is in an archive: to import PySpark would take
   half a second. Who has no PySpark (the distribution `lithify-core` brings none) is told so.
2. From `OLDEST` on there is all that Lithify needs. The test suite runs on that one and on the newest.
3. Spark 3 does not run on every Java that Spark 4 runs on, has no file of settings beside the machine's own,
   and listens on ports only.
"""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lithify.base.errors import Refused

Version = tuple[int, int]
"""Major and minor."""
OLDEST: Version = (3, 5)
SPARK_4: Version = (4, 0)
_NEWEST_JAVA_OF_SPARK_3 = 21
"""Later ones do not let it ask who its user is."""


def installed_version() -> Version:
    """Return the version of this process's PySpark. Raise `Refused` when there is none, or one that is too
    old."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise Refused(
            "there is no PySpark here: `pip install lithify` brings one (`lithify-core` does not), or start "
            "this program by the platform's own spark-submit, or in its notebook"
        )
    loader: Any = found.loader
    text = loader.get_data(str(Path(found.origin).with_name("version.py"))).decode()
    assigned = re.search(r"__version__[^=\n]*=\s*[\"']([^\"']+)", text)
    return checked_version(assigned[1] if assigned else "")


def checked_version(text: str) -> Version:
    """Return `3.5.1` as major and minor. Raise `Refused` when Lithify does not run on it."""
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < OLDEST:
        raise Refused(f"Spark {text or 'of an unknown version'} is too old: Lithify runs on 3.5 or newer")
    return version


def newest_java(version: Version) -> int | None:
    """Return the newest Java that this Spark runs on; `None`: no limit."""
    return _NEWEST_JAVA_OF_SPARK_3 if version < SPARK_4 else None


def has_load_defaults(version: Version) -> bool:
    """Return whether `spark-submit` can read the machine's own settings in addition to a file of settings."""
    return version >= SPARK_4


def stream_to(server: Any) -> Any:
    """Return a stream to a server inside the JVM (`PythonParallelizeServer`), which listens on a port, or
    with newer versions perhaps on a socket of this machine."""
    from pyspark.java_gateway import local_connect_and_auth

    takes_any = "conn_info" in inspect.signature(local_connect_and_auth).parameters
    stream, _ = local_connect_and_auth(server.connInfo() if takes_any else server.port(), server.secret())
    return stream
