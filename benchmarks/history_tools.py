"""What keeps the metadata of a table in shape, each tool in a process of its own:
`python -m benchmarks.history_tools TOOL JOB FOLDER`, where the job is

- `expire`: let all snapshots go but the newest `KEPT` and what a tag names, with their files, and delete the
  orphans;
- `manifests`: write the manifests anew.

What is measured is the job, without imports, opening the catalog or starting Spark. Files go at once, with
nobody's grace. In a table that Lithify expires, a reader stands at an older snapshot, which it says with a
hold: others know of no readers, so there it loses what it reads from.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.iceberg_data import NAME, open_catalog
from benchmarks.iceberg_tools import JAVA_PYTHON, version_of
from benchmarks.watch import TreeStopwatch

JAVA = "Iceberg on Spark 3.5"
KEPT = 5
READER_BEHIND = 20
"""Snapshots."""
LEASE_MS = 24 * 3_600_000
Job = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and its jobs by name. Without any, it is another Python's."""

    name: str
    package: str
    jobs: Callable[[Path], dict[str, Job]] | None = None

    @property
    def missing(self) -> str | None:
        """Why it cannot run here."""
        if self.jobs is None:
            return None if JAVA_PYTHON.exists() else f"there is no {JAVA_PYTHON}"
        return None if version_of(self.package) is not None else f"{self.package} is not installed"

    def command(self, job: str, folder: Path, uri: str | None) -> list[str]:
        """What to run."""
        if self.jobs is None:
            return [str(JAVA_PYTHON), "-m", "benchmarks.history_java", job, str(uri), str(KEPT)]
        return [sys.executable, "-m", "benchmarks.history_tools", self.name, job, str(folder)]


def _lithify(folder: Path) -> dict[str, Job]:
    from lithify.base.clock import SystemClock
    from lithify.base.ids import RandomIds
    from lithify.datasets.iceberg.dataset import IcebergDataset
    from lithify.datasets.iceberg.io.catalogs import TableUrl
    from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer
    from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
    from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, remove_orphans
    from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
    from lithify.datasets.maintenance import HoldRequest

    clock, ids = SystemClock(), RandomIds()

    def dataset() -> IcebergDataset:
        return IcebergDataset(open_catalog(folder), TableUrl("bench", NAME), clock, ids)

    stands = reader_at(len(dataset().load().metadata.snapshots))
    if stands is not None:
        TableMaintenance(dataset(), clock, ids).hold(HoldRequest(version=stands), LEASE_MS, None, "a reader")

    def expire() -> None:
        options = ExpireOptions(older_than_ms=clock.now_ms(), retain_last=KEPT, grace_ms=0)
        Expirer(dataset(), clock, ids).run(options)
        remove_orphans(dataset(), clock, ids, OrphanOptions(dry_run=False, max_percent=100))

    return {"expire": expire, "manifests": lambda: ManifestRewriter(dataset(), clock).run()}


def _zamboni(folder: Path) -> dict[str, Job]:
    from zamboni.expire import RetentionPolicy, SnapshotExpirer
    from zamboni.manifests import ManifestRewriter
    from zamboni.orphans import OrphanCleaner

    def expire() -> None:
        policy = RetentionPolicy(max_snapshot_age_ms=1, min_snapshots_to_keep=KEPT)
        SnapshotExpirer(policy).run(open_catalog(folder).load_table(NAME))
        OrphanCleaner().run(open_catalog(folder).load_table(NAME))

    def rewrite() -> None:
        ManifestRewriter().run(open_catalog(folder).load_table(NAME))

    return {"expire": expire, "manifests": rewrite}


def reader_at(snapshots: int) -> int | None:
    """Where the reader of a history stands; nowhere where there is none."""
    return snapshots - READER_BEHIND if snapshots > READER_BEHIND else None


TOOLS = (
    Tool("Lithify", "lithify", _lithify),
    Tool("zamboni", "iceberg-zamboni", _zamboni),
    Tool(JAVA, "snowpark-connect-deps-iceberg"),
)


def _main(name: str, job: str, folder: Path) -> dict[str, float]:
    tool = next(tool for tool in TOOLS if tool.name == name)
    assert tool.jobs is not None
    run = tool.jobs(folder)[job]
    began_s, watch = time.time(), TreeStopwatch()
    run()
    wall_s, cpu_s = watch.read()
    return {"began_s": began_s, "wall_s": wall_s, "cpu_s": cpu_s}


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))), flush=True)
