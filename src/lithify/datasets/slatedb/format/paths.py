"""Names of the objects of a SlateDB database (SlateDB format: layout).

Keys lie under the key of the database's root. Numbered files have exactly twenty digits: a file whose
number is padded otherwise makes clients hang, so it is no numbered file here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lithify.base.errors import DatasetNotFound, Refused
from lithify.base.ids import Ulid, parse_ulid

MANIFEST_SUFFIX = ".manifest"
COMPACTIONS_SUFFIX = ".compactions"
SST_SUFFIX = ".sst"
_ENCODED = re.compile(r'[^ -}]|[#%?*"<>`^|\\\[\]{}]')
"""What SlateDB percent-encodes in a path, once for its manifests and twice for its SSTs."""
_WAL_NAME = re.compile(r"([0-9]{20})\.sst")


@dataclass(frozen=True, slots=True)
class DatabasePaths:
    """The object keys of one database. `root` has no slash at either end; it is empty for a database
    at the root of its store."""

    root: str

    @property
    def manifest_folder(self) -> str:
        return self._under("manifest")

    @property
    def compactions_folder(self) -> str:
        return self._under("compactions")

    @property
    def compacted_folder(self) -> str:
        return self._under("compacted")

    @property
    def wal_folder(self) -> str:
        return self._under("wal")

    @property
    def boundary_folder(self) -> str:
        return self._under("gc")

    @property
    def own_folder(self) -> str:
        """Where Lithify keeps what is not part of the database: no SlateDB process looks there."""
        return self._under("lithify")

    @property
    def time_key(self) -> str:
        """An object for asking the store what time it is."""
        return f"{self.own_folder}/now"

    @property
    def progress_folder(self) -> str:
        """`<compaction id>/<range>`: how far a running range has come."""
        return f"{self.own_folder}/progress"

    @property
    def attempts_folder(self) -> str:
        """`<compaction id>/<attempt>`: why a worker gave a compaction back."""
        return f"{self.own_folder}/attempts"

    @property
    def manifest_boundary(self) -> str:
        """The file that says up to which id manifests may be gone."""
        return f"{self.boundary_folder}/manifest.boundary"

    @property
    def compactions_boundary(self) -> str:
        """The file that says up to which id compactions files may be gone."""
        return f"{self.boundary_folder}/compactions.boundary"

    def sst(self, sst_id: Ulid) -> str:
        """The key of a compacted SST."""
        return f"{self.compacted_folder}/{sst_id}{SST_SUFFIX}"

    def wal(self, wal_id: int) -> str:
        """The key of a file of the write-ahead log."""
        return f"{self.wal_folder}/{wal_id:020d}{SST_SUFFIX}"

    def _under(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name


def parse_sst_key(key: str) -> Ulid | None:
    """The SST an object in a `compacted` folder belongs to; `None` if it belongs to none.

    As for the official garbage collector only the text before the first dot counts, so
    `<ULID>.sst.tmp` belongs to the SST too.
    """
    return _canonical_ulid(key.rsplit("/", 1)[-1].split(".", 1)[0])


def parse_wal_key(key: str) -> int | None:
    """The number of the file of the write-ahead log that `key` names; `None` if it names none."""
    match = _WAL_NAME.fullmatch(key.rsplit("/", 1)[-1])
    return int(match[1]) if match is not None else None


def parse_note_key(key: str) -> Ulid | None:
    """The compaction that an object in a folder of notes (`…/<compaction id>/<name>`) is about; `None`
    if it is about none."""
    parts = key.rsplit("/", 2)
    return _canonical_ulid(parts[1]) if len(parts) == 3 else None


def _canonical_ulid(text: str) -> Ulid | None:
    if text != text.upper():
        return None
    try:
        return parse_ulid(text)
    except ValueError:
        return None


def check_whole(url: str, root: str, *, has_manifest: bool) -> None:
    """`Refused` when there is no whole database at `root`, which errors call `url`: no manifest
    (`DatasetNotFound`), or a path under which SlateDB keeps manifests and SSTs in two places."""
    if has_manifest and "%" not in root:
        return  # where the path is odd all the same, somebody has copied it there
    what = f"there is no SlateDB database at {url}: no manifest was found"
    if has_manifest:
        what = f"what lies at {url} is a part of a SlateDB database"
    odd = _ENCODED.search(root)
    do = "check the URL"
    if odd is not None:
        do = f"of a path with {odd[0]!r} SlateDB puts manifests and SSTs in two other places; use one without"
    raise (Refused if has_manifest else DatasetNotFound)(f"{what}; {do}")
