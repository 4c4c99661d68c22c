"""What a task of an Iceberg table needs, imported before there is one (`engine.daemon`)."""

from __future__ import annotations

from importlib import import_module

_MODULES = ("lithify.datasets.iceberg.compaction.execute", "pyiceberg.io.pyarrow")


def preload() -> None:
    """Import it."""
    for module in _MODULES:
        import_module(module)
