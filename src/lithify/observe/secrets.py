"""Masking of the secrets that a command was given, in all its output except results.

Errors mask texts that look like secrets (`lithify.base.redaction`). Here the values of secret settings are
known too, and are masked in messages of libraries.
"""

from __future__ import annotations

from collections.abc import Iterable

from lithify.base.redaction import redact

_known: set[str] = set()


def conceal(secrets: Iterable[str]) -> None:
    """Mask these values from now on."""
    _known.update(secrets)


def concealed(text: str) -> str:
    """Return the text with secrets masked."""
    return redact(text, _known)
