"""Names of the objects of a SlateDB database (SlateDB format: layout).

Keys lie under the key of the database's root. Numbered files have exactly twenty digits: a file whose number
is padded differently makes clients hang, so it does not count as a numbered file here.
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
"""The characters that SlateDB percent-encodes in a path, once for its manifests and twice for its SSTs."""
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
        """Return the folder of Lithify's own files, which are not part of the database: no SlateDB process
        reads it."""
        return self._under("lithify")

    @property
    def time_key(self) -> str:
        """Return the key of the object from which the store's time is read."""
        return f"{self.own_folder}/now"

    @property
    def progress_folder(self) -> str:
        """Return the folder of `<compaction id>/<range>`: the progress of running ranges."""
        return f"{self.own_folder}/progress"

    @property
    def attempts_folder(self) -> str:
        """Return the folder of `<compaction id>/<attempt>`: why a worker released a compaction."""
        return f"{self.own_folder}/attempts"

    @property
    def manifest_boundary(self) -> str:
        """Return the key of the file that records up to which id manifests may be deleted."""
        return f"{self.boundary_folder}/manifest.boundary"

    @property
    def compactions_boundary(self) -> str:
        """Return the key of the file that records up to which id compactions files may be deleted."""
        return f"{self.boundary_folder}/compactions.boundary"

    def sst(self, sst_id: Ulid) -> str:
        """Return the key of a compacted SST."""
        return f"{self.compacted_folder}/{sst_id}{SST_SUFFIX}"

    def wal(self, wal_id: int) -> str:
        """Return the key of a file of the write-ahead log."""
        return f"{self.wal_folder}/{wal_id:020d}{SST_SUFFIX}"

    def _under(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name


def parse_sst_key(key: str) -> Ulid | None:
    """Return the SST that an object in a `compacted` folder belongs to, or `None`.

    As in the official garbage collector only the text before the first dot counts, so `<ULID>.sst.tmp`
    belongs to the SST too.
    """
    return _canonical_ulid(key.rsplit("/", 1)[-1].split(".", 1)[0])


def parse_wal_key(key: str) -> int | None:
    """Return the number of the file of the write-ahead log that `key` names, or `None`."""
    match = _WAL_NAME.fullmatch(key.rsplit("/", 1)[-1])
    return int(match[1]) if match is not None else None


def parse_note_key(key: str) -> Ulid | None:
    """Return the compaction that an object in a folder of notes (`…/<compaction id>/<name>`) is about, or
    `None`."""
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
    """Raise `Refused` if there is no complete database at `root`, which errors call `url`: no manifest
    (`DatasetNotFound`), or a path under which SlateDB keeps manifests and SSTs in two places."""
    if has_manifest and "%" not in root:
        return  # a database at an odd path was copied there
    what = f"there is no SlateDB database at {url}: no manifest was found"
    if has_manifest:
        what = f"{url} contains only a part of a SlateDB database"
    do = _why_odd(root) or "check the URL"
    raise (Refused if has_manifest else DatasetNotFound)(f"{what}; {do}")


def check_plain(url: str, root: str) -> None:
    """Raise `Refused` if no database can be made at `root`."""
    if odd := _why_odd(root):
        raise Refused(f"{url}: {odd}")


def _why_odd(root: str) -> str | None:
    odd = _ENCODED.search(root)
    if odd is None:
        return None
    return (
        f"SlateDB puts the manifests and SSTs of a path with {odd[0]!r} in two different places; use a "
        "path without it"
    )
