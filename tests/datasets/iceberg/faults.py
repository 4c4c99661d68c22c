"""Everything a compaction does to the outside world, counted, and made to fail: Lithify's own objects, the
files that PyIceberg reads, writes and deletes, and the calls of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.faulty import Crash, StoreFault

ResultT = TypeVar("ResultT")
IO_PROPERTY = {"py-io-impl": "tests.datasets.iceberg.faults.FaultyFileIO"}


class Faults:
    """Says what happens to each call, by its number."""

    def __init__(self, faults: Mapping[int, StoreFault] | None = None) -> None:
        self.calls: list[str] = []
        self._faults = faults or {}
        self._is_dead = False

    def around(self, name: str, action: Callable[[], ResultT]) -> ResultT:
        if self._is_dead:
            raise Crash(f"{name}: the process is dead")
        self.calls.append(name)
        fault = self._faults.get(len(self.calls))
        self._is_dead = fault in (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER)
        if fault is StoreFault.CRASH_BEFORE:
            raise Crash(name)
        if fault is StoreFault.FAIL_BEFORE:
            raise _failure(name)
        result = action()
        if fault is StoreFault.CRASH_AFTER:
            raise Crash(name)
        if fault is StoreFault.FAIL_AFTER:
            raise _failure(name)
        return result


class Meanwhile(Faults):
    """Lets somebody else do something, without faults, right before the call of this number."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        super().__init__()
        self._number, self._action = number, action
        self.has_happened = False

    def around(self, name: str, action: Callable[[], ResultT]) -> ResultT:
        if len(self.calls) + 1 >= self._number and not self.has_happened:
            self.has_happened = True
            install(Faults())
            try:
                self._action()
            finally:
                install(self)
        return super().around(name, action)


def _failure(name: str) -> Exception:
    if name.startswith("commit"):
        return CommitStateUnknownException(f"injected: {name}")
    return OSError(f"injected: {name}")


_current = Faults()


def install(faults: Faults) -> Faults:
    """Let these faults decide from now on."""
    global _current
    _current = faults
    return faults


class FaultyStore(WrappedStore):
    """Lithify's own objects."""

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        return _current.around(f"{call.method} {call.key}", action)


def faulty(open_place: Callable[[Table], tuple[ObjectStore, str]]) -> Any:
    """Put the faulty store around what a dataset opens."""

    def opened(table: Table) -> tuple[ObjectStore, str]:
        store, root = open_place(table)
        return FaultyStore(store), root

    return opened


class FaultyFileIO(PyArrowFileIO):
    """Files that PyIceberg touches."""

    def new_input(self, location: str) -> PyArrowFile:
        return _current.around(f"read {location}", lambda: super(FaultyFileIO, self).new_input(location))

    def new_output(self, location: str) -> PyArrowFile:
        return _current.around(f"write {location}", lambda: super(FaultyFileIO, self).new_output(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        _current.around(f"delete {location}", lambda: super(FaultyFileIO, self).delete(location))


class FaultyCatalog(SqlCatalog):
    """The catalog."""

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        return _current.around("load", lambda: super(FaultyCatalog, self).load_table(identifier))

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        commit = super().commit_table
        return _current.around("commit", lambda: commit(table, requirements, updates))
