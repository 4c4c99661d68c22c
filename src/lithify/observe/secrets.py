"""The secrets this command was given: masked in whatever it writes besides its results.

Errors mask by themselves what looks like a secret (`lithify.base.redaction`). Here, at the edge, the values
of secret settings are known as well, and are masked wherever a foreign message shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from lithify.base.redaction import redact

_known: set[str] = set()


def conceal(secrets: Iterable[str]) -> None:
    """Mask these from now on."""
    _known.update(secrets)


def concealed(text: str) -> str:
    """The text without secrets."""
    return redact(text, _known)
