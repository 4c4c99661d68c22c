"""Deviations of S3-compatible servers in conditional writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from lithify.testing.s3.answers import S3Answer, S3Error


class Quirk(Enum):
    """One deviation from S3."""

    IGNORES_IF_NONE_MATCH = "a create overwrites"
    NO_IF_NONE_MATCH = "a create is answered by 501"
    IGNORES_IF_MATCH = "an overwrite with any etag succeeds"
    NO_IF_MATCH = "an overwrite with an etag is answered by 501"
    WEAK_ETAGS = "its etags are weak, so none ever matches"
    WEAKENED_ETAGS = "its etags are strong, and a proxy makes them weak on their way out"


_NOT_IMPLEMENTED = {Quirk.NO_IF_NONE_MATCH: "if-none-match", Quirk.NO_IF_MATCH: "if-match"}
_IGNORED = {Quirk.IGNORES_IF_NONE_MATCH: "if-none-match", Quirk.IGNORES_IF_MATCH: "if-match"}
_WEAK = "W/"


def of_write(headers: Mapping[str, str], quirks: Collection[Quirk]) -> Mapping[str, str]:
    """Return the headers of a write as a server with these quirks reads them. Raise `S3Error` if it refuses
    them."""
    for quirk, name in _NOT_IMPLEMENTED.items():
        if quirk in quirks and name in headers:
            raise S3Error(501, "NotImplemented", f"A header you provided implies functionality: {name}")
    ignored = {name for quirk, name in _IGNORED.items() if quirk in quirks}
    taken = {name: value for name, value in headers.items() if name not in ignored}
    if Quirk.WEAK_ETAGS in quirks and "if-match" in taken:
        taken["if-match"] = f"{_WEAK}{taken['if-match'].removeprefix(_WEAK)}"  # matches nothing
    return taken


def of_answer(answer: S3Answer, quirks: Collection[Quirk]) -> S3Answer:
    """Return the answer as the client receives it."""
    etag = answer.headers.get("ETag")
    if etag is None or not {Quirk.WEAK_ETAGS, Quirk.WEAKENED_ETAGS} & set(quirks):
        return answer
    return answer._replace(headers={**answer.headers, "ETag": f"{_WEAK}{etag}"})
