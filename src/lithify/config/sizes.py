"""Sizes as people write them: `500MB`, `1.5 GiB`, or plain bytes."""

from __future__ import annotations

import re

_DECIMAL, _BINARY = ("k", "m", "g", "t", "p"), ("ki", "mi", "gi", "ti", "pi")
_UNITS: dict[str, int] = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(_DECIMAL, 1)},
    **{unit: 1024**power for power, unit in enumerate(_BINARY, 1)},
}
_SIZE = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*?)[bB]?\s*")


def parse_size(text: str) -> int:
    """Bytes; `ValueError` for anything else."""
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found is not None else None
    if found is None or unit is None:
        raise ValueError(
            f"{text[:40]!r} is no size; write bytes, or a number and a unit, such as 500MB or 2GiB"
        )
    return round(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
