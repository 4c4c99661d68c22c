"""Long walks in parts: the suite plays the first, `make whole` the others."""

from __future__ import annotations

import pytest


def in_parts(count: int) -> pytest.MarkDecorator:
    """Give a test its `part`, a number below `count`: it plays every so many-th step of its walk, from that
    one on. Where steps alternate between two ways to die, an odd count has a part play both."""
    others = [pytest.param(part, marks=pytest.mark.whole) for part in range(1, count)]
    return pytest.mark.parametrize("part", [0, *others])
