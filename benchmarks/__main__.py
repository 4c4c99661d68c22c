"""`make bench`, or `python -m benchmarks`: measure, print tables, write `build/bench.json`.

1. Make the databases that are not there yet.
2. Repeat, one side after the other within each repetition, so that a slow spell of the machine hits all:
   `cp`, the official compactor with one subcompaction, Lithify's kernel on one core; and where a case
   says so, the official compactor as it is by default, and a whole run of Lithify. Before each,
   everything written so far is flushed to disk and the inputs are read once, so that all sides find
   them in the page cache; after each, its outputs are removed.
3. The service as processes run it (`benchmarks.service`) and what coordination costs (`benchmarks.idle`).
4. Compactions over S3 (`benchmarks.s3`).
5. Compactors of Iceberg tables beside each other, on disk (`benchmarks.iceberg`) and over S3
   (`benchmarks.iceberg_s3`).
6. Expiry, manifests and planning of tables with a long history, at scale (`benchmarks.history`).
7. The first page of a large fleet's dashboard, and its memory (`benchmarks.dashboard`).
8. What a fleet costs, idle and busy (`benchmarks.fleet`), how fast it compacts many small databases
   (`benchmarks.fleet_small`), how long it lets wait (`benchmarks.fleet_waits`), and what is small beside
   what is large (`benchmarks.fleet_beside`).
9. Keyed logs in Kafka's format beside Kafka's own record filter, aiokafka and a plain compactor
   (`benchmarks.logs`).
10. Report medians. The exit code is 0 even when a target is missed: the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks import (
    dashboard,
    fleet,
    fleet_beside,
    fleet_small,
    fleet_waits,
    history,
    iceberg,
    iceberg_s3,
    logs,
    report,
    s3,
    service_report,
)
from benchmarks.cases import CASES, Case
from benchmarks.child import Cost, cost_of_cp
from benchmarks.data import copy_for_a_run, database_of, warm_up_page_cache
from benchmarks.official import OfficialRun, measure_official
from benchmarks.ours import EndToEndRun, KernelRun, measure_end_to_end, measure_kernel
from benchmarks.s3_cases import BANDWIDTH, LATENCIES_MS

BUILD = Path("build")
DEFAULT_SUBCOMPACTIONS = 4
SERVICE = "service"
RunT = TypeVar("RunT")


class Bench:
    """Measures cases with the same settings."""

    def __init__(self, cache: Path, scale: float, repetitions: int, console: Console) -> None:
        self._cache = cache
        self._scale = scale
        self._repetitions = repetitions
        self._console = console

    def kernel(self, case: Case) -> report.KernelSamples:
        """`cp`, official and Lithify on one core."""
        database = self._database(case)
        cp: list[Cost] = []
        official: list[OfficialRun] = []
        ours: list[KernelRun] = []
        for _ in range(self._repetitions):
            cp.append(self._measure(database, lambda copy: cost_of_cp(database, copy / "cp")))
            official.append(self._measure(database, lambda copy: measure_official(case, copy, 1)))
            ours.append(self._measure(database, measure_kernel))
        return report.KernelSamples(case, cp, official, ours)

    def end_to_end(self, case: Case) -> report.EndToEndSamples:
        """Official with its defaults, and a whole run of Lithify on Spark."""
        database = self._database(case)
        official: list[OfficialRun] = []
        ours: list[EndToEndRun] = []
        for _ in range(self._repetitions):
            official.append(
                self._measure(database, lambda copy: measure_official(case, copy, DEFAULT_SUBCOMPACTIONS))
            )
            ours.append(self._measure(database, measure_end_to_end))
        return report.EndToEndSamples(case, official, ours)

    def _database(self, case: Case) -> Path:
        self._console.print(f"{case.name} …", highlight=False)
        return database_of(case, self._cache, self._scale)

    def _measure(self, database: Path, measure: Callable[[Path], RunT]) -> RunT:
        copy = copy_for_a_run(database, self._cache / f"run-{os.getpid()}")
        os.sync()
        warm_up_page_cache(database)
        try:
            return measure(copy)
        finally:
            shutil.rmtree(copy)


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Lithify beside SlateDB's compactor."
    )
    parts = [*(case.name for case in CASES), SERVICE, *s3.NAMES, iceberg.NAME, iceberg_s3.NAME]
    parts += [history.NAME, dashboard.NAME, fleet.NAME, logs.NAME]
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the data, to try things out")
    parser.add_argument("--only", action="append", choices=parts, metavar="PART")
    parser.add_argument(
        "--latency",
        action="append",
        type=int,
        metavar="MS",
        help=f"of S3; can be given several times (default: {', '.join(map(str, LATENCIES_MS))})",
    )
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=BANDWIDTH / 1e6,
        metavar="MB/S",
        help="of each connection to S3, 0 for no limit (default: %(default)g)",
    )
    parser.add_argument("--cache", type=Path, default=BUILD / "bench-data", help="where databases are kept")
    parser.add_argument("--output", type=Path, default=BUILD / "bench.json")
    arguments = parser.parse_args()
    console = Console()
    cases = [case for case in CASES if arguments.only is None or case.name in arguments.only]
    bench = Bench(arguments.cache.absolute(), arguments.scale, arguments.repetitions, console)
    kernel = [bench.kernel(case) for case in cases]
    end_to_end = [bench.end_to_end(case) for case in cases if case.min_wall_ratio is not None]
    service = None
    if arguments.only is None or SERVICE in arguments.only:
        service = service_report.measure(
            arguments.cache.absolute(), arguments.scale, arguments.repetitions, console
        )
    latencies_ms = arguments.latency or LATENCIES_MS
    over_s3 = None
    if names := s3.selected(arguments.only):
        bandwidth = arguments.bandwidth * 1e6 or None
        cache = arguments.cache.absolute()
        over_s3 = s3.measure_s3(names, latencies_ms, cache, arguments.scale, console, bandwidth)
    tables = None
    if arguments.only is None or iceberg.NAME in arguments.only:
        tables = iceberg.measure(arguments.cache.absolute(), arguments.scale, arguments.repetitions, console)
    tables_over_s3 = None
    if arguments.only is None or iceberg_s3.NAME in arguments.only:
        tables_over_s3 = iceberg_s3.measure(
            latencies_ms, arguments.cache.absolute(), arguments.scale, console
        )
    histories = None
    if arguments.only is None or history.NAME in arguments.only:
        histories = history.measure(arguments.cache.absolute(), arguments.scale, console)
    shown = None
    if arguments.only is None or dashboard.NAME in arguments.only:
        shown = dashboard.measure(arguments.cache.absolute(), arguments.repetitions, console)
    of_fleets: dict[
        str, fleet.FleetCost | fleet_small.SmallDatabases | fleet_waits.Waits | fleet_beside.Beside
    ] = {}
    if arguments.only is None or fleet.NAME in arguments.only:
        idle, busy = fleet.measure_both(arguments.scale)
        of_fleets = {
            "idle": idle,
            "busy": busy,
            "small": fleet_small.measure(arguments.scale),
            "waits": fleet_waits.measure(arguments.scale),
            "beside": fleet_beside.measure(arguments.cache.absolute(), arguments.scale),
        }
    keyed_logs = None
    if arguments.only is None or logs.NAME in arguments.only:
        keyed_logs = logs.measure(arguments.cache.absolute(), arguments.scale, console)
    if kernel:
        report.print_tables(console, kernel, end_to_end)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results = report.document(kernel, end_to_end, arguments.repetitions, arguments.scale)
    if service is not None:
        service.print_tables(console)
        results[SERVICE] = service.to_json()
    if over_s3 is not None:
        s3.print_tables(console, over_s3)
        results[s3.NAME] = over_s3.to_json()
    if tables is not None:
        iceberg.print_tables(console, tables)
        results[iceberg.NAME] = tables.to_json()
    if tables_over_s3 is not None:
        iceberg_s3.print_tables(console, tables_over_s3)
        results[iceberg_s3.NAME] = tables_over_s3.to_json()
    if histories is not None:
        history.print_tables(console, histories)
        results[history.NAME] = histories.to_json()
    if shown is not None:
        dashboard.print_tables(console, shown)
        results[dashboard.NAME] = shown.to_json()
    if of_fleets:
        for part in of_fleets.values():
            part.print_table(console)
        results[fleet.NAME] = {name: part.to_json() for name, part in of_fleets.items()}
    if keyed_logs is not None:
        logs.print_tables(console, keyed_logs)
        results[logs.NAME] = keyed_logs.to_json()
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"Written: {arguments.output}", highlight=False)


if __name__ == "__main__":
    main()
