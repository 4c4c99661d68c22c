"""Modules that a task of an Iceberg table needs, imported before the first task (`engine.daemon`)."""

from __future__ import annotations

from importlib import import_module

_MODULES = ("lithify.datasets.iceberg.compaction.execute", "pyiceberg.io.pyarrow")


def preload() -> None:
    """Import the modules."""
    for module in _MODULES:
        import_module(module)
