"""Classification of obstore's errors: whether to retry the request, and why it failed, in a few words.

obstore has error classes for decisions of the store, and one for the rest. The text of that one contains the
status of the answer, or that the connection failed, with the causes below `Debug source`.

| failure | retried |
|---|---|
| no connection, a connection that broke, an answer that broke off, no answer in time | yes |
| 408, 429, 5xx but for 501 and 505; 400 `RequestTimeout`; 400 and 403 for a clock that is off | yes |
| credentials looked up on the network and not found; a listing that is not XML | a few seconds |
| credentials of a profile that cannot be fetched now | yes |
| a name that is not found, a certificate that is not trusted | a few seconds |
| 401, 403 and other 4xx, redirections, arguments that form no valid request | no |

Failures retried for a few seconds may be mistakes in the settings. A name or a certificate (`UNREACHED`) is
not one once the store has answered anything: then it is an ordinary outage
(`lithify.store.resilience.requests`).
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError

from lithify.base.errors import StoreUnavailable
from lithify.store.resilience.retries import RequestFailure

_STATUS = re.compile(r"status code: (\d{3})([^:]*)")
PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524})
_PASSING_CODES = ("RequestTimeout", "RequestTimeTooSkewed")
_METADATA_SERVICES = ("://169.254.", "://metadata.google.internal")
"""Services that a client asks for credentials if none are given."""
_NO_CREDENTIALS = (
    "no credentials are given (in the environment, such as AWS_ACCESS_KEY_ID, in an AWS profile, or by "
    "--store-option), and this machine has no role that provides some"
)
_NOT_SERVED = frozenset({405, 501})
_SERVES_NO = {"list": "does not list objects", "delete": "does not delete objects"}
_PROVIDER = re.compile(r"External AWS credential provider: (\w+): (.*)", re.DOTALL)
"""A failure of `aws_profiles`: the name of its class and its message."""
_MAX_CHARS = 500
UNKNOWN_NAME = "its host name is not found"
UNTRUSTED = "its certificate is not trusted"
UNREACHED = frozenset({UNKNOWN_NAME, UNTRUSTED})
"""Causes that occur before a request reaches the store."""
_MESSAGE = re.compile(r'(?:message|error): "([^"]+)"')


def said_by(error: BaseException) -> str:
    """Return the beginning of an error's message, preceded by an explanation if it needs one."""
    said = str(error).partition("\n\nDebug source")[0]
    provider = _PROVIDER.search(said)
    said = (provider[2] if provider is not None else said)[:_MAX_CHARS]
    return f"{_NO_CREDENTIALS}: {said}" if any(place in said for place in _METADATA_SERVICES) else said


def not_served(error: BaseException, verb: str) -> str | None:
    """Return the message for an operation that the store lacks, if the error means that; else `None`."""
    status = _STATUS.search(str(error).partition("Debug source")[0])
    if status is None or int(status[1]) not in _NOT_SERVED:
        return None
    lacks = _SERVES_NO.get(verb, "does not support this operation")
    return (
        f"this store {lacks} ({status[1]}{status[2]}), which Lithify needs: keep the data in a store that "
        "does, or leave its maintenance to the service that owns this store, as with S3 table buckets"
    )


def right_for(error: BaseException, verb: str) -> str:
    """Return which right may be missing, as the rest of a sentence, if the store denied this operation; else
    empty text."""
    status = _STATUS.search(str(error).partition("Debug source")[0])
    if status is None or status[1] != "403":
        return ""
    if verb == "list":
        return "; allow this user to list the folder (S3: s3:ListBucket, a right on the bucket itself)"
    if verb in ("get", "head"):
        return "; if the object need not exist, allow s3:ListBucket: without that right, S3 denies so too"
    return ""


def failure_of(error: BaseException) -> tuple[RequestFailure, str]:
    """Return the kind of failure of an obstore error, and its cause in a few words."""
    text, _, debug = str(error).partition("Debug source")
    status = _STATUS.search(text)
    if status is not None:
        passes = int(status[1]) in PASSING_STATUS or any(code in text for code in _PASSING_CODES)
        return RequestFailure.PASSING if passes else RequestFailure.LASTING, f"{status[1]}{status[2]}".strip()
    provider = _PROVIDER.search(text)
    if provider is not None:
        failure = (
            RequestFailure.PASSING if provider[1] == StoreUnavailable.__name__ else RequestFailure.LASTING
        )
        return failure, "no credentials"
    # obstore's writers raise all errors as OSError, without the part below `Debug source`.
    if type(error) is not OSError and (
        type(error).__name__ != "GenericError" or not isinstance(error, BaseError)
    ):
        return RequestFailure.LASTING, type(error).__name__
    if "HTTP error" in text:
        return _connection_failure(text, debug)
    if "invalid list response" in text:
        return RequestFailure.DOUBTFUL, "a listing that is not XML"
    return RequestFailure.LASTING, text.strip()[:100]


def _connection_failure(text: str, debug: str) -> tuple[RequestFailure, str]:
    message = _MESSAGE.search(debug)
    if "Certificate" in debug or "certificate" in text:
        return RequestFailure.DOUBTFUL, UNTRUSTED
    if "dns error" in debug:
        return RequestFailure.DOUBTFUL, UNKNOWN_NAME
    if "kind: Builder" in debug:
        return RequestFailure.LASTING, "no valid request can be built"
    cause = "the connection failed"
    if "TimedOut" in debug or "kind: Timeout" in debug:
        cause = "no answer in time"
    elif message is not None:
        cause = message[1][0].lower() + message[1][1:]
    elif "IncompleteBody" in debug:
        cause = "the answer was cut off"
    elif "IncompleteMessage" in debug:
        cause = "the connection was closed"
    is_lookup = any(place in text for place in _METADATA_SERVICES)
    return RequestFailure.DOUBTFUL if is_lookup else RequestFailure.PASSING, cause
