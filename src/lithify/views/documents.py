"""Values of any class as JSON values."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """Return a JSON value: bytes as hexadecimal, enums by lower-case name, values of other classes as
    text."""
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "name") and hasattr(value, "value"):
        return str(value.name).lower()
    return value if isinstance(value, int | float | str | bool | None) else str(value)
