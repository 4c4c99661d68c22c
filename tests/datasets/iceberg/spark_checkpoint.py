"""Checkpoint folders as Spark Structured Streaming writes them, with Iceberg's positions."""

from __future__ import annotations

import json
from pathlib import Path

OF_SPARK = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


def position(snapshot_id: int) -> str:
    """A position as Iceberg writes it."""
    return json.dumps({"version": 1, "snapshot_id": snapshot_id, "position": 1, "scan_all_files": False})


class SparkCheckpoint:
    """A checkpoint with one source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._batch = -1

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def begin(self, snapshot_id: int) -> None:
        """Iceberg's source says where it begins."""
        self._write("metadata", json.dumps({"id": "0d3c"}))
        self._write("sources/0/offsets/0", position(snapshot_id))

    def plan(self, snapshot_id: int) -> None:
        """Spark says up to where the next batch will read."""
        self._batch += 1
        self._write(f"offsets/{self._batch}", "\n".join(["v1", OF_SPARK, position(snapshot_id)]))

    def commit(self) -> None:
        """Spark says that the batch is done."""
        self._write(f"commits/{self._batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")
