"""The table of 500 small files in an object store: the same compactors as on disk, side by side.

1. The store is `lithify.testing.s3` in a process of its own, with `BANDWIDTH` for each connection and one
   latency for all requests. For each run the table is put there anew, without being read.
2. Each compactor works once at each latency, in a process of its own. What it asked for is told by the
   server's log, between the beginning and the end of the compaction. Some know REST catalogs only: what such
   a catalog reads and writes itself has another access key; it counts for nobody, but is waited for.
3. Afterwards, in good weather, DuckDB compares all rows with the input's.
4. Once each works on the local disk, in the same run: over S3 Lithify is to be at least as far ahead of the
   fastest peer that keeps rows right whatever others commit (`iceberg_meanwhile`) as there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import iceberg_meanwhile
from benchmarks.iceberg import Measured, check_rows, last_line, sample
from benchmarks.iceberg_data import FILES, ROWS_PER_FILE, copy_for_a_run, data_files, table_of
from benchmarks.iceberg_layout import Rows, fingerprint
from benchmarks.iceberg_rest import served
from benchmarks.iceberg_s3_data import SIDE, KeptTable, download, key_of, put_anew, store_at, table_in_s3
from benchmarks.iceberg_tools import JAVA_WITH_S3, TOOLS, Tool
from benchmarks.report import Target
from benchmarks.s3_cases import BANDWIDTH
from benchmarks.watch import WatchedFailed, run_watched
from lithify.testing.s3 import LoggedRequest, S3Process, Weather, by_class, latency_of_all, longest_chain
from lithify.testing.s3 import most_in_flight as most_at_once

NAME = "Iceberg S3"
LOCAL_ONLY = {
    "Iceberg on Spark 3.5": "it has no client for S3; an older one has",
    "Iceberg on Spark 3.5 sorted": "it has no client for S3; an older one has",
    "DuckDB sorted COPY": "its extension for S3 does not come from the package index",
}
TABLE_WIDTH = 160
_KINDS = ("data GET", "control GET", "HEAD", "LIST", "PUT", "DELETE")


@dataclass(frozen=True, slots=True)
class Run:
    """One compaction over S3."""

    wall_s: float
    cpu_s: float
    requests: dict[str, int]
    bytes_read: int
    bytes_written: int
    chain: int
    """The most requests of which each began after the one before had ended."""
    most_in_flight: int
    chain_requests: list[str]


@dataclass(slots=True)
class Compactor:
    """What was measured of one compactor."""

    on_disk: Measured
    runs: dict[int, Run] = field(default_factory=dict)
    """By latency in milliseconds."""
    failure: str | None = None

    @property
    def disk_wall_s(self) -> float | None:
        return self.on_disk.median("wall_s") if self.on_disk.samples else None


@dataclass(frozen=True, slots=True)
class IcebergS3Results:
    """Everything measured here."""

    files: int
    latencies_ms: Sequence[int]
    compactors: Sequence[Compactor]

    def targets(self) -> list[Target]:
        """Wall over that of the fastest safe peer, at each latency and on disk."""
        ours, *peers = self.compactors
        found = []
        for latency_ms in self.latencies_ms:
            over_s3 = {
                peer.on_disk.tool.name: peer
                for peer in peers
                if peer.on_disk.is_safe and latency_ms in peer.runs and peer.disk_wall_s is not None
            }
            if over_s3 and latency_ms in ours.runs and ours.disk_wall_s is not None:
                fastest = min(over_s3.values(), key=lambda peer: peer.runs[latency_ms].wall_s)
                on_disk = min(peer.disk_wall_s or 0.0 for peer in over_s3.values())
                ratio = ours.runs[latency_ms].wall_s / fastest.runs[latency_ms].wall_s
                name = (
                    f"wall over the fastest that keeps rows right, at {latency_ms} ms, not above that on disk"
                )
                found.append(Target(name, ratio, ours.disk_wall_s / on_disk, False))
        return found

    def to_json(self) -> dict[str, object]:
        """Everything, for programs."""
        return {
            "files": self.files,
            "bandwidth_of_a_connection": BANDWIDTH,
            "compactors": [
                {
                    "name": compactor.on_disk.tool.name,
                    "failure": compactor.failure,
                    "surplus_rows": compactor.on_disk.surplus_rows,
                    "disk_wall_s": compactor.disk_wall_s,
                    "runs": {str(latency_ms): asdict(run) for latency_ms, run in compactor.runs.items()},
                }
                for compactor in self.compactors
            ],
            "targets": [target.to_json() for target in self.targets()],
        }


def measure(latencies_ms: Iterable[int], cache: Path, scale: float, console: Console) -> IcebergS3Results:
    """Measure everything; `scale` is the fraction of the files."""
    latencies_ms, files = list(latencies_ms), max(1, round(FILES * scale))
    console.print(f"{NAME}, on disk …", highlight=False)
    compactors = [
        Compactor(Measured(tool), failure=LOCAL_ONLY.get(tool.name) or tool.missing)
        for tool in (*TOOLS, JAVA_WITH_S3)
    ]
    place = table_of(cache, files, ROWS_PER_FILE)
    small = table_of(cache, iceberg_meanwhile.FILES, iceberg_meanwhile.ROWS_PER_FILE)
    rows = fingerprint(data_files(copy_for_a_run(place)))
    for compactor in compactors:
        if compactor.failure is None:
            check_rows(compactor.on_disk, small)
            sample(compactor.on_disk, place, rows)
            compactor.failure = compactor.on_disk.failure
    with S3Process() as server, tempfile.TemporaryDirectory(prefix="iceberg-s3-") as folder:
        kept = table_in_s3(server, cache, files, ROWS_PER_FILE)
        for latency_ms in latencies_ms:
            for compactor in compactors:
                if compactor.failure is None:
                    name = compactor.on_disk.tool.name
                    console.print(f"{NAME}, {latency_ms} ms, {name} …", highlight=False)
                    _measure(compactor, server, kept, latency_ms, Path(folder), rows)
    return IcebergS3Results(files, latencies_ms, compactors)


def _measure(
    compactor: Compactor, server: S3Process, kept: KeptTable, latency_ms: int, folder: Path, rows: Rows
) -> None:
    work, tool = folder / "work", compactor.on_disk.tool
    put_anew(server, kept, work)
    try:
        document, log = _run(server, tool, work, latency_ms)
    except WatchedFailed as error:
        compactor.failure = f"at {latency_ms} ms: {error}"
        return
    live = download(
        store_at(server), [key_of(str(location)) for location in document["files"]], folder / "live"
    )
    if fingerprint(live) != rows:
        compactor.failure = f"at {latency_ms} ms: the rows afterwards are not those before"
    else:
        compactor.runs[latency_ms] = run_of(document, log)
    shutil.rmtree(folder / "live")


def _run(
    server: S3Process, tool: Tool, work: Path, latency_ms: int
) -> tuple[dict[str, Any], list[LoggedRequest]]:
    with served(work) if tool.needs_rest else nullcontext() as uri:
        server.forget()
        server.weather = Weather(latency=latency_of_all(latency_ms), bandwidth=BANDWIDTH)
        try:
            watched = run_watched(tool.command(work, uri))
        finally:
            server.weather = Weather()
        return watched.document, server.log


def run_of(document: dict[str, Any], log: Sequence[LoggedRequest]) -> Run:
    """What a process and the log say of one compaction."""
    began_s = document["began_s"]
    ended_s = began_s + document["wall_s"]
    requests = [r for r in log if r.requester == SIDE and began_s <= r.start_s <= ended_s]
    chain = longest_chain(requests)
    return Run(
        wall_s=document["wall_s"],
        cpu_s=document["cpu_s"],
        requests=dict(by_class(requests, is_data)),
        bytes_read=sum(r.bytes_out for r in requests),
        bytes_written=sum(r.bytes_in for r in requests),
        chain=len(chain),
        most_in_flight=most_at_once(requests),
        chain_requests=[
            f"{r.start_s - began_s:.3f} s: {r.operation} {r.key} {r.range}".strip() for r in chain
        ],
    )


def is_data(key: str) -> bool:
    """Whether an object holds rows."""
    return key.endswith(".parquet")


def print_tables(console: Console, results: IcebergS3Results) -> None:
    """Times and requests at each latency, and every target with its verdict."""
    title = f"{results.files} small files over S3, {BANDWIDTH / 1e6:.0f} MB/s a connection, one compaction"
    table = Table(title=title, box=SIMPLE)
    headings = ("disk s", "ms", "wall s", "CPU s", *_KINDS, "MB in", "MB out", "chain", "at once")
    for heading in ("", *headings):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for compactor in results.compactors:
        disk_s = compactor.disk_wall_s
        for latency_ms, run in compactor.runs.items():
            table.add_row(
                compactor.on_disk.tool.name,
                "" if disk_s is None else f"{disk_s:.2f}",
                str(latency_ms),
                f"{run.wall_s:.2f}",
                f"{run.cpu_s:.2f}",
                *(str(run.requests.get(kind, 0)) for kind in _KINDS),
                f"{run.bytes_read / 1e6:.0f}",
                f"{run.bytes_written / 1e6:.0f}",
                str(run.chain),
                str(run.most_in_flight),
            )
    console.print(table, width=TABLE_WIDTH, crop=False)
    for compactor in results.compactors:
        name = compactor.on_disk.tool.name
        if compactor.failure is not None:
            says = last_line(compactor.failure)
            console.print(f"{name}: not measured over S3: {says}", highlight=False, markup=False)
        elif not compactor.on_disk.is_safe:
            says = f"{name}: rows are wrong after others have committed: {compactor.on_disk.surplus_rows}"
            console.print(says, highlight=False, markup=False)
    for target in results.targets():
        colour = "green" if target.is_met else "red"
        console.print(f"[{colour}]{NAME}: {target}[/]", highlight=False)
