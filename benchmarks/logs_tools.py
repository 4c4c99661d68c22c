"""What is done to a keyed log, each tool in a process of its own: `python -m benchmarks.logs_tools JOB …`.

| job                      | does                                                                        |
|--------------------------|-----------------------------------------------------------------------------|
| `rewrite FOLDER`         | Lithify: decode, filter by the offsets that are dead, encode                |
| `decode FOLDER`          | Lithify: decode everything, checked                                         |
| `decode-aiokafka FOLDER` | aiokafka: the same, record by record                                        |
| `round FOLDER OUT`       | Lithify: a whole round, the three steps of which one task runs after another|
| `plain FOLDER OUT`       | a plain compactor: a dict of keys, aiokafka to read and to write            |

Everything runs on one core. What is measured is the job, without imports and compilation: a few batches are
done first. `rewrite` writes nowhere, as the JVM does (`KafkaBench.java`), and takes a checksum in a pass that
is not measured. The last line of the output is JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.child import Stopwatch
from benchmarks.logs_data import DEAD, PARTITION
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.datasets.kafka.cleaning.retention import NO_BOUND, NO_OFFSETS, Rules
from lithify.datasets.kafka.cleaning.segments import Cleaned, Cleaner
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.chunked_decode import decoded
from lithify.datasets.kafka.format.kernel.retaining import Offsets
from lithify.datasets.kafka.format.record_batches import RecordBatches
from lithify.datasets.kafka.layouts.reading import pieces, streamed
from lithify.datasets.kafka.layouts.segments import read_folder
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import Step
from lithify.protocol.model import Compaction, Ledger
from lithify.store.urls import open_store

NOW_MS, DAY_MS = 1_800_000_000_000, 86_400_000


def _decoded(folder: Path) -> Iterator[RecordBatches]:
    store, root = open_store(str(folder / PARTITION))
    after = -1
    for segment in read_folder(store, root).segments:
        for found, _ in decoded(pieces(store, segment), after=after):
            after = int(found.batches["last_offset"][-1])
            yield found


def _cleaned(folder: Path, dead: Offsets) -> Iterator[Cleaned]:
    store, root = open_store(str(folder / PARTITION))
    rules = Rules(NOW_MS, DAY_MS, keep_unkeyed=False, bound=NO_BOUND)
    cleaner = Cleaner(rules, dead, NO_OFFSETS)
    for segment in read_folder(store, root).segments:
        yield from cleaner.cleaned(streamed(store, segment))


def rewrite(folder: Path) -> dict[str, Any]:
    """Filter all that is dead out."""
    dead = np.fromfile(folder / DEAD, "<i8").astype(np.int64)
    crc = 0
    for found in _cleaned(folder, dead):
        crc = zlib.crc32(found.kept, crc)
    watch, records, written = Stopwatch(), 0, 0  # all is in the page cache, and what is compiled is loaded
    for found in _cleaned(folder, dead):
        records += int(found.tally.sum())
        written += len(found.kept)
    cost = watch.read()
    return {"records": records, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "bytes": written, "crc": crc}


def decode_all(folder: Path) -> dict[str, Any]:
    """Read every record, checksums included."""
    next(_decoded(folder))
    watch, records = Stopwatch(), 0
    for found in _decoded(folder):
        records += len(found.records)
    return {"records": records, "cpu_s": watch.read().cpu_s}


def decode_aiokafka(folder: Path) -> dict[str, Any]:
    """The same with aiokafka, whose records are objects."""
    store, root = open_store(str(folder / PARTITION))
    segments = read_folder(store, root).segments
    watch, records = Stopwatch(), 0
    for segment in segments:
        batches = MemoryRecords(store.get(segment.key))
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            records += sum(1 for _ in batch)
    return {"records": records, "cpu_s": watch.read().cpu_s}


def whole_round(folder: Path, out: Path) -> dict[str, Any]:
    """Index, match, rewrite, and publish, as the tasks of a round do it; how much each step read."""
    next(_decoded(folder))
    source, target = (open_store(str(path)) for path in (folder / PARTITION, out))
    dataset = LogDataset(
        f"kafka+file://{folder / PARTITION}", source, target, SystemClock(), RandomIds(), KafkaSettings()
    )
    log_bytes = sum(s.size_bytes for s in dataset.snapshot().partitions[PARTITION].segments)
    watch, read, seconds = Stopwatch(), {}, {}
    for step in (Step.INDEX, Step.MATCH, Step.REWRITE):
        began = watch.read()
        (proposal,) = dataset.propose(dataset.snapshot(), Ledger(), full=True).proposals
        assert proposal.spec.step is step
        compaction = Compaction(RandomIds().ulid(SystemClock().now_ms()), proposal.spec)
        works = dataset.prepare(compaction, dataset.snapshot()).works
        outcomes = [dataset.outcome(work.function(work.argument)) for work in works]
        outputs = tuple(itertools.chain.from_iterable(outcome.outputs for outcome in outcomes))
        verdicts = dataset.commit([replace(compaction, outputs=outputs)], dataset.take_epoch())
        assert verdicts == {compaction.id: None}
        read[str(step)] = sum(outcome.bytes_read for outcome in outcomes)
        seconds[str(step)] = watch.read().wall_s - began.wall_s
    cost, found = watch.read(), dataset.snapshot().round(PARTITION)
    assert found is not None
    return {
        "records": found.records,
        "wall_s": cost.wall_s,
        "cpu_s": cost.cpu_s,
        "log_bytes": log_bytes,
        "new_bytes": found.new_bytes,
        "read": read,
        "seconds": seconds,
    }


def plain(folder: Path, out: Path) -> dict[str, Any]:
    """As one would write it: a dict from keys to offsets, then all is read again and what stays is written.
    The newest segment stays as it is, as everywhere."""
    store, root = open_store(str(folder / PARTITION))
    *settled, _ = read_folder(store, root).segments
    out.mkdir(parents=True, exist_ok=True)
    watch, newest, records = Stopwatch(), {}, 0
    for segment in settled:
        batches = MemoryRecords(store.get(segment.key))
        while batches.has_next():
            for record in batches.next_batch():
                newest[record.key] = record.offset
                records += 1
    for segment in settled:
        with (out / segment.key.rpartition("/")[2]).open("wb") as file:
            batches = MemoryRecords(store.get(segment.key))
            while batches.has_next():
                batch = batches.next_batch()
                kept = [record for record in batch if newest[record.key] == record.offset]
                if kept:
                    file.write(_plain_batch(batch.base_offset, kept))
    cost = watch.read()
    return {"records": records, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "keys": len(newest)}


def _plain_batch(base_offset: int, kept: list[object]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for record in kept:
        at = record.offset - base_offset  # type: ignore[attr-defined]
        builder.append(at, record.timestamp, record.key, record.value, [])  # type: ignore[attr-defined]
    data = builder.build()
    data[:8] = base_offset.to_bytes(8)
    return bytes(data)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "rewrite": rewrite,
    "decode": decode_all,
    "decode-aiokafka": decode_aiokafka,
    "round": whole_round,
    "plain": plain,
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*map(Path, sys.argv[2:]))), flush=True)
