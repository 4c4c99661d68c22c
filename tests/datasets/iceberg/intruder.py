"""Code that a table's metadata name, and that nothing may call."""

from __future__ import annotations

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.locations import SimpleLocationProvider

NAME = f"{__name__}.Intruder"
LOCATIONS = f"{__name__}.Locations"
FILES = f"{__name__}.Files"
calls: list[tuple[Any, ...]] = []
"""The arguments of every call."""


class Intruder:
    """Records that it was called."""

    def __init__(self, *arguments: Any) -> None:
        calls.append(arguments)


class Locations(SimpleLocationProvider):
    """A location provider that works, and that an operator may allow."""

    def new_data_location(self, data_file_name: str, partition_key: Any = None) -> str:
        calls.append((data_file_name,))
        return super().new_data_location(f"chosen/{data_file_name}", partition_key)


class Files(PyArrowFileIO):
    """A file access that works, and that an operator may name."""

    def __init__(self, properties: Any) -> None:
        calls.append((properties,))
        super().__init__(properties)
