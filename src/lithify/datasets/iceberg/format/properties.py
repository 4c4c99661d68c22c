"""Numbers in a table's properties, which any writer may have set."""

from __future__ import annotations

from collections.abc import Mapping

from lithify.base.errors import Refused

MAX_INT = (1 << 31) - 1
"""Most numbers in these properties are Java's ints."""
_MAX_SHOWN_CHARS = 40


def whole_number(
    properties: Mapping[str, str], key: str, default: int, least: int = 1, most: int | None = None
) -> int:
    """Return the property's value or the default. Raise `Refused` unless it is a whole number within the
    bounds."""
    text = properties.get(key)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise Refused(
            f"the table's property {key} is {text[:_MAX_SHOWN_CHARS]!r}; it must be a whole number {bounds}"
        )
    return value
