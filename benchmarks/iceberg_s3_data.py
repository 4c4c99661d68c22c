"""The table of `iceberg_data` in an object store: made there once, then kept on this machine; each run gets
its objects anew, at the same locations, from a server that reads them from the disk.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import S3Store

from benchmarks.iceberg_data import CATALOG, MAKE_TIMEOUT_S, REACHED, VERSION
from benchmarks.s3_run import options_of
from lithify.testing.s3 import S3Process

BUCKET = "lake"
WAREHOUSE = f"s3://{BUCKET}/warehouse"
SIDE, JUDGE = "side", "judge"
"""Who asks, by access key: what is measured, and who looks afterwards."""


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table as it was made."""

    folder: Path

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def catalog(self) -> Path:
        return self.folder / CATALOG


def table_in_s3(server: S3Process, cache: Path, files: int, rows_per_file: int) -> KeptTable:
    """A table in the folder `cache`, made with the help of `server` if it is not there."""
    kept = KeptTable(cache.absolute() / f"iceberg-s3-v{VERSION}-{files}-{rows_per_file}")
    if not kept.folder.exists():
        work = kept.folder.with_name(f"{kept.folder.name}.making")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _empty(server, work)
        reach(server, work, SIDE)
        command = [
            sys.executable, "-m", "benchmarks.iceberg_data", str(work), str(files), str(rows_per_file),
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=MAKE_TIMEOUT_S)
        store = store_at(server)
        found = [str(meta["path"]) for page in obstore.list(store) for meta in page]
        download(store, [key for key in found if key.startswith("warehouse/")], work / "objects")
        work.rename(kept.folder)
    return kept


def put_anew(server: S3Process, kept: KeptTable, folder: Path) -> None:
    """The table as it was made, with its catalog in `folder`, which is made anew too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _empty(server, folder)
    server.load(kept.objects, BUCKET)
    shutil.copy2(kept.catalog, folder / CATALOG)
    reach(server, folder, SIDE)


def _empty(server: S3Process, folder: Path) -> None:
    """The bucket without objects; `folder` has no files."""
    server.load(folder, BUCKET)  # creates it
    server.delete(BUCKET)


def reach(server: S3Process, folder: Path, requester: str) -> None:
    """Say how the catalog in a folder reaches its files."""
    (folder / REACHED).write_text(json.dumps(properties(server.url, requester)))


def properties(endpoint: str, requester: str) -> dict[str, str]:
    """Of a catalog whose files are in the store."""
    return {
        "warehouse": WAREHOUSE,
        "s3.endpoint": endpoint,
        "s3.access-key-id": requester,
        "s3.secret-access-key": "secret",
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "allow_http": "true",
    }


def store_at(server: S3Process) -> S3Store:
    """How the judge reaches the objects."""
    return S3Store(BUCKET, config=options_of(server.url, JUDGE))  # type: ignore[arg-type]


def download(store: S3Store, keys: Sequence[str], folder: Path) -> list[Path]:
    """Objects as files."""
    paths = []
    for key in keys:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(obstore.get(store, key).bytes()))
        paths.append(path)
    return paths


def key_of(location: str) -> str:
    """The key of an object in the bucket."""
    return location.removeprefix(f"s3://{BUCKET}/")
