"""What the official coordinator makes of a manifest and a ledger.

1. An empty database made by the official client is copied.
2. The trees of a made-up manifest, and a ledger, are put into it as the next versions. There are no
   data behind them, and none are read: a coordinator looks at metadata only.
3. The client opens it with a coordinator and no worker. Its first tick comes at once.
4. The versions of the ledger that appear are read one after the other, up to the first in which the
   test sees what it waits for: the coordinator may be further by then. The database is closed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lithify.datasets.slatedb.format.ledger import SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import Manifest
from tests.judge.client import open_db

IDLE: Mapping[str, str] = {"min_compaction_sources": "1000000"}
"""Scheduler options with which nothing is ever proposed."""
_TIMEOUT_S = 100.0
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Official:
    """The manifest and the ledger after the official coordinator has been at work."""

    manifest: Manifest
    ledger: SlateLedger


def coordinate(
    root: Path,
    until: Callable[[SlateLedger], bool],
    *,
    scheduler: Mapping[str, str] = IDLE,
    max_concurrent: int = 4,
    trivial_move: bool = False,
    segment_prefix_len: int | None = None,
) -> Official:
    """Open the database with a coordinator and no worker until a version of the ledger is as wanted."""
    compactor: dict[str, Any] = {
        "poll_interval": "20ms",
        "commit_compacted_interval": "20ms",
        "worker": None,
        "scheduler_options": dict(scheduler),
        "max_concurrent_compactions": max_concurrent,
        "enable_trivial_move": trivial_move,
    }
    seen = _ledgers(root)
    with open_db(root, settings={"compactor_options": compactor}, segment_prefix_len=segment_prefix_len):
        reached = _first(root, seen, until)
        return Official(latest_manifest(root), reached)


class OfficialCoordinator:
    """Runs official coordinators on copies of empty databases made under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        for prefix_len in (None, 1):
            with open_db(self._template(prefix_len), segment_prefix_len=prefix_len):
                pass

    def run(
        self,
        manifest: Manifest,
        ledger: SlateLedger,
        until: Callable[[SlateLedger], bool],
        *,
        scheduler: Mapping[str, str] = IDLE,
        max_concurrent: int = 4,
        trivial_move: bool = False,
    ) -> Official:
        """Start a coordinator on the trees and external databases of `manifest` and on `ledger`, and
        stop it once the ledger is as wanted."""
        self._count += 1
        prefix_len = 1 if manifest.segments else None
        root = self._folder / f"db{self._count}"
        shutil.copytree(self._template(prefix_len), root)
        empty = latest_manifest(root)
        staged = replace(
            empty, root=manifest.root, segments=manifest.segments, external_dbs=manifest.external_dbs
        )
        _publish(root / "manifest", "manifest", encode_manifest(staged))
        _publish(root / "compactions", "compactions", encode_ledger(replace(ledger, epoch=0)))
        try:
            return coordinate(
                root,
                until,
                scheduler=scheduler,
                max_concurrent=max_concurrent,
                trivial_move=trivial_move,
                segment_prefix_len=prefix_len,
            )
        finally:
            shutil.rmtree(root)

    def _template(self, prefix_len: int | None) -> Path:
        return self._folder / ("empty" if prefix_len is None else "empty-segmented")


def _first(root: Path, seen: Sequence[Path], until: Callable[[SlateLedger], bool]) -> SlateLedger:
    """The first version after those `seen` that is as wanted."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    count, ledger = len(seen), None
    while time.monotonic() < deadline_s:
        for file in _ledgers(root)[count:]:
            count += 1
            ledger = decode_ledger(file.read_bytes(), file.name)
            if until(ledger):
                return ledger
        time.sleep(_POLL_S)
    raise AssertionError(f"the official coordinator did not come so far in {_TIMEOUT_S} s: {ledger}")


def _ledgers(root: Path) -> list[Path]:
    return _files(root / "compactions") if (root / "compactions").exists() else []


def latest_manifest(root: Path) -> Manifest:
    """The newest manifest of a local database."""
    latest = _files(root / "manifest")[-1]
    return decode_manifest(latest.read_bytes(), latest.name)


def _publish(folder: Path, kind: str, data: bytes) -> None:
    folder.mkdir(exist_ok=True)
    version = max((int(file.stem) for file in _files(folder)), default=0) + 1
    (folder / f"{version:020}.{kind}").write_bytes(data)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if "#" not in file.name)
