"""The reasons for which pages cannot be copied. Both are sentences' ends: "column a has pages …"."""

from __future__ import annotations


class Uncopyable(Exception):
    """A column that cannot be copied by pages. Arrow decodes it and encodes it again, or refuses it."""


class CannotMerge(Exception):
    """Files that cannot be merged here at all: their rows must be decoded, or they are damaged."""
