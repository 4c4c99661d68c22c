"""CPU of merging Parquet files by copying pages, beside PyArrow's decoding and encoding of the same files.

    python -m benchmarks.pages [--files 60] [--rows 20000] [--repetitions 5]

Both sides run in one process, one after the other in each repetition, with one thread; files are in memory.
Medians are shown, and PyArrow's over ours. The rows of both outputs are compared.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lithify.parquet.columns import PageOptions
from lithify.parquet.copier import MergeOptions, ParquetInput, merge_files

PLAIN = ["event_time", "id", "amount", "session", "url"]
"""The columns of which a file hardly repeats a value."""


def append_only(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
    """Events that follow each other in time."""
    times = 1_767_225_600_000_000 + number * 60_000_000 + np.sort(rng.integers(0, 60_000_000, rows))
    words = np.array(["new", "paid", "sent", "back"])
    items, pages = rng.integers(0, 200_000, rows), rng.integers(0, 900, rows)
    return pa.table(
        {
            "event_time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "id": rng.integers(0, 1 << 40, rows),
            "amount": np.round(rng.gamma(2, 40, rows), 2),
            "session": [f"s-{x:012x}" for x in rng.integers(0, 1 << 44, rows)],
            "url": [f"/shop/item/{x}?ref={y}" for x, y in zip(items, pages, strict=True)],
            "status": words[rng.integers(0, 4, rows)],
            "country": [f"C{x:02d}" for x in rng.integers(0, 60, rows)],
            "quantity": pa.array(rng.integers(1, 9, rows), pa.int32()),
        }
    )


def nested(rng: np.random.Generator, rows: int, number: int) -> pa.Table:
    """Lists and structs beside a number."""
    sizes = rng.integers(0, 6, rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    values = pa.array(rng.normal(size=int(sizes.sum())))
    point = pa.StructArray.from_arrays(
        [pa.array(rng.normal(size=rows)), pa.array(rng.integers(0, 9, rows))], ["x", "kind"]
    )
    return pa.table(
        {"id": np.arange(rows) + number * rows, "list": pa.ListArray.from_arrays(offsets, values), "p": point}
    )


CASES: dict[str, tuple[Callable[[np.random.Generator, int, int], pa.Table], bool | list[str]]] = {
    "append-only": (append_only, ["status", "country", "quantity"]),
    "append-only, a dictionary for each column": (append_only, True),
    "nested": (nested, False),
}


def by_pages(files: Sequence[bytes], dictionaries: bool | list[str]) -> bytes:
    inputs = [ParquetInput(str(n), io.BytesIO(data), len(data)) for n, data in enumerate(files)]
    stream = io.BytesIO()
    merge_files(inputs, stream, MergeOptions(PageOptions(codec="zstd")))
    return stream.getvalue()


def by_arrow(files: Sequence[bytes], dictionaries: bool | list[str]) -> bytes:
    tables = [pq.read_table(io.BytesIO(data), use_threads=False) for data in files]
    stream = io.BytesIO()
    table = pa.concat_tables(tables)
    pq.write_table(table, stream, compression="zstd", use_dictionary=dictionaries, row_group_size=1 << 20)
    return stream.getvalue()


def measure(name: str, files: int, rows: int, repetitions: int) -> dict[str, object]:
    make, dictionaries = CASES[name]
    rng = np.random.default_rng(7)
    inputs = []
    for number in range(files):
        stream = io.BytesIO()
        pq.write_table(make(rng, rows, number), stream, compression="zstd", use_dictionary=dictionaries)
        inputs.append(stream.getvalue())
    sides = {"pages": by_pages, "arrow": by_arrow}
    outputs = {side: run(inputs, dictionaries) for side, run in sides.items()}  # compiles the kernel
    read = [pq.read_table(io.BytesIO(data), use_threads=False) for data in outputs.values()]
    assert read[0].equals(read[1]), f"{name}: other rows"
    cpu_s: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repetitions):
        for side, run in sides.items():
            started_s = time.process_time()
            run(inputs, dictionaries)
            cpu_s[side].append(time.process_time() - started_s)
    medians = {side: statistics.median(found) for side, found in cpu_s.items()}
    return {
        "case": name,
        "input_bytes": sum(map(len, inputs)),
        "output_bytes": {side: len(data) for side, data in outputs.items()},
        "cpu_s": {side: round(seconds, 3) for side, seconds in medians.items()},
        "arrow_over_pages": round(medians["arrow"] / medians["pages"], 2),
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(argv)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    for name in options.case or CASES:
        print(json.dumps(measure(name, options.files, options.rows, options.repetitions)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
