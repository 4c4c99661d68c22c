"""Masking of secrets in settings and in text (pure).

1. A setting is secret by its name: one of its words indicates it (`secret`, `password`, `token`,
   `credential`, `sas`, …), or it is some kind of `key` and not just the id of one.
2. In any text four things are masked: user information before the `@` of a URL, the value after a secret's
   name (`name=value`, `"name": "value"`), the credentials of an HTTP header, and private keys.
3. Secrets with known values are masked everywhere.

Masking is idempotent. Text without secrets is not changed, unless it resembles one: masking too much is
better than too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "********"
SPARK_REGEX = (
    r"(?i)secret|passw|passphrase|credential|token|signature|authorization|connection[._-]?string"
    r"|[a-z0-9][._-]key\b(?![._-]id)|(access|account|api)key|[._]sas\b|://[^/@\s]*:[^/@\s]*@"
)
"""The equivalent for Spark (`spark.redaction.regex`), which masks a setting if its name or its value
matches."""
MIN_KNOWN_CHARS = 6
"""A shorter value is not a secret, and masking it would garble the text."""

_SECRET_PARTS = (
    "secret",
    "passw",
    "passphrase",
    "credential",
    "token",
    "signature",
    "authorization",
    "connectionstring",
)
_SECRET_WORDS = frozenset({"sas", "sig", "pwd", "pass", "auth"})
_HARMLESS_KEYS = frozenset({"id", "enabled", "name", "type"})
"""Last words of settings about a key that do not contain the key itself."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\\"[^"]*\\"|[^\s,;&|)}\]'"\\]+)"""
_PAIR = re.compile(
    rf"""(?<![\w.\-])-*(?P<name>[A-Za-z][\w.\-]*)(?P<between>\\?["']\s*:\s*|\\?["']?\s?=\s?)(?P<value>{_VALUE})"""
)
_USER_INFO = re.compile(
    r"""(?<![A-Za-z0-9+.\-])(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)
    (?:
        [^\s'"/?\#@:]{0,999}:[^\s'"/?\#]{0,9999}@                   # user:password@, an @ in it included
      | [^\s'"/?\#@:]{0,999}:(?!\d+(?:[/?\#]|$))[^\s'"@]{0,999}@    # a password with a slash in it
      | (?<=http://)[^\s'"/?\#@:]{1,999}@ | (?<=https://)[^\s'"/?\#@:]{1,999}@
    )""",
    re.VERBOSE,
)
_HEADER = re.compile(r"(?i)\b(bearer|basic) +(?=[A-Za-z+/_.~\-]*\d)[A-Za-z0-9+/_.~\-]{8,}=*")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?(?:-----END \1PRIVATE KEY-----|$)", re.DOTALL
)


def is_secret(name: str) -> bool:
    """Return whether a setting with this name holds a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    joined = "".join(words)
    if any(part in joined for part in _SECRET_PARTS) or not _SECRET_WORDS.isdisjoint(words):
        return True
    if words[-2:] == ["per", "key"]:  # a number
        return False
    return len(words) > 1 and any(word.endswith("key") for word in words) and words[-1] not in _HARMLESS_KEYS


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with its secrets masked, and all values in `known`."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= MIN_KNOWN_CHARS:
            text = text.replace(secret, MASK)
    if "://" in text:
        text = _USER_INFO.sub(rf"\g<scheme>{MASK}@", text)
    if "=" in text or ":" in text:
        text = _PAIR.sub(_masked, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    return _HEADER.sub(rf"\g<1> {MASK}", text)


def shown(name: str, value: object) -> object:
    """Return a setting's value with secrets masked."""
    if value and is_secret(name):
        return MASK
    return redact(value) if isinstance(value, str) else value


def _masked(pair: re.Match[str]) -> str:
    if not is_secret(pair["name"]):
        return pair[0]
    quote = re.match(r"""\\?["']|""", pair["value"])
    mark = quote[0] if quote else ""
    return f"{pair[0].removesuffix(pair['value'])}{mark}{MASK}{mark}"
