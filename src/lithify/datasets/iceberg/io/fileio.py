"""PyIceberg's file access, by Lithify's own requests.

Catalogs that Lithify opens access files through `StoreFileIO`:

1. A file outside the table's reach (`reach`) is refused before any request.
2. A file in a store that Lithify's own requests reach (`stores`) is a `StoredFile`: its requests are retried
   and hedged, and an unfinished file does not exist.
3. All other files, and all files of a catalog whose configuration names another FileIO (`py-io-impl`), are
   PyIceberg's. PyArrow itself repeats their requests to S3, with jitter and a bound, for some minutes.
"""

from __future__ import annotations

from typing import Any

from pyarrow.fs import AwsStandardS3RetryStrategy
from pyiceberg.catalog import Catalog
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.typedef import EMPTY_DICT, Properties

from lithify.datasets.iceberg.io.catalog_requests import without_requests
from lithify.datasets.iceberg.io.reach import REACH, check_reach
from lithify.datasets.iceberg.io.store_file_io import StoredFile
from lithify.datasets.iceberg.io.stores import STORES, FileStores, stores_of
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import split_scheme

_STRATEGY = "s3.retry-strategy-impl"
_GIVEN_IMPL = "lithify.py-io-impl"


class Patiently(AwsStandardS3RetryStrategy):  # type: ignore[misc]
    """A strategy with which PyArrow retries requests for some minutes."""

    def __init__(self) -> None:
        super().__init__(max_attempts=25)


def let_wait(catalog: Catalog, waiting: WaitPolicy) -> None:
    """Access all files that this catalog opens from now on through `StoreFileIO`."""
    properties = catalog.properties
    if PY_IO_IMPL in properties:
        properties[_GIVEN_IMPL] = properties[PY_IO_IMPL]
    properties[PY_IO_IMPL] = f"{__name__}.{StoreFileIO.__name__}"
    properties[STORES] = FileStores(waiting)


class StoreFileIO(FileIO):
    """File access for the tables of one catalog; see the module."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._others: dict[str | None, FileIO] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_others": {}}

    def new_input(self, location: str) -> InputFile:
        stored = self._stored(location)
        return stored if stored is not None else self._other(location).new_input(location)

    def new_output(self, location: str) -> OutputFile:
        stored = self._stored(location)
        return stored if stored is not None else self._other(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        stored = self._stored(path)
        if stored is not None:
            stored.delete()
        else:
            self._other(path).delete(path)

    def _stored(self, location: str) -> StoredFile | None:
        """Return a file, or `None` if it is PyIceberg's. Raise `Refused` if it is outside the reach."""
        check_reach(location, self.properties)
        stores = stores_of(self.properties)
        if stores is None or _GIVEN_IMPL in self.properties:
            return None
        return stores.file(location, self.properties)

    def _other(self, location: str) -> FileIO:
        """Return the FileIO that the operator's configuration names, or PyIceberg's for this scheme."""
        scheme = split_scheme(location)[0]
        if scheme not in self._others:
            given = {
                name: value
                for name, value in without_requests(self.properties).items()
                if name not in (PY_IO_IMPL, _GIVEN_IMPL, STORES, REACH)
            }
            if _GIVEN_IMPL in self.properties:
                given[PY_IO_IMPL] = self.properties[_GIVEN_IMPL]
            given.setdefault(_STRATEGY, f"{__name__}.{Patiently.__name__}")
            self._others[scheme] = load_file_io(given, location)
        return self._others[scheme]
