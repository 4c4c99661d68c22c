"""Names of the objects of a SlateDB database (SlateDB format: layout).

Keys lie under the key of the database's root. Numbered files have exactly twenty digits: a file whose
number is padded otherwise makes clients hang, so it is no numbered file here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.ids import Ulid, parse_ulid

MANIFEST_SUFFIX = ".manifest"
COMPACTIONS_SUFFIX = ".compactions"
SST_SUFFIX = ".sst"


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
    def manifest_boundary(self) -> str:
        """The file that says up to which id manifests may be gone."""
        return self._under("gc/manifest.boundary")

    @property
    def compactions_boundary(self) -> str:
        """The file that says up to which id compactions files may be gone."""
        return self._under("gc/compactions.boundary")

    def sst(self, sst_id: Ulid) -> str:
        """The key of a compacted SST."""
        return f"{self.compacted_folder}/{sst_id}{SST_SUFFIX}"

    def _under(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name


def parse_sst_key(key: str) -> Ulid | None:
    """The SST an object in a `compacted` folder belongs to; `None` if it belongs to none.

    As for the official garbage collector only the text before the first dot counts, so
    `<ULID>.sst.tmp` belongs to the SST too.
    """
    stem = key.rsplit("/", 1)[-1].split(".", 1)[0]
    if stem != stem.upper():
        return None
    try:
        return parse_ulid(stem)
    except ValueError:
        return None
