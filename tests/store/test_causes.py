"""What obstore's errors mean. The texts are obstore's own, shortened; what a server can be made to do is in
`test_flaky.py`."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, InvalidPathError, PermissionDeniedError

from lithify.store.causes import failure_of
from lithify.store.retries import Failure


def connecting(debug: str, url: str = "http://store:9000/b/k") -> GenericError:
    text = f"Generic S3 error: Error performing GET {url} in 1ms - HTTP error: error sending request"
    return GenericError(f"{text}\n\nDebug source:\n{debug}")


@pytest.mark.parametrize(
    ("error", "failure", "cause"),
    [
        (
            connecting('Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }'),
            Failure.PASSING,
            "connection refused",
        ),
        (
            connecting('"dns error", Custom { error: "failed to lookup address information" }'),
            Failure.DOUBTFUL,
            "its name is not found",
        ),
        (connecting("kind: Timeout, source: TimedOut"), Failure.PASSING, "no answer in time"),
        (connecting("InvalidCertificate(UnknownIssuer)"), Failure.DOUBTFUL, "its certificate is not trusted"),
        (connecting("kind: Builder"), Failure.LASTING, "no request can be made of it"),
        (
            connecting("kind: Timeout", "http://169.254.169.254/latest/api/token"),
            Failure.DOUBTFUL,
            "no answer in time",
        ),
        (
            GenericError("Generic S3 error: Got invalid list response: syntax error"),
            Failure.DOUBTFUL,
            "a listing that is no XML",
        ),
        (
            OSError("Generic S3 error: Error performing POST - HTTP error: request or response body error"),
            Failure.PASSING,
            "the connection failed",
        ),
        (
            OSError("x: status code: 403 Forbidden: <Code>AccessDenied</Code>"),
            Failure.LASTING,
            "403 Forbidden",
        ),
        (OSError("no space left on device"), Failure.LASTING, "no space left on device"),
        (
            PermissionDeniedError("x: status code: 403 Forbidden: <Code>AccessDenied</Code>"),
            Failure.LASTING,
            "403 Forbidden",
        ),
        (InvalidPathError("the path is no path"), Failure.LASTING, "InvalidPathError"),
        (ValueError("something else"), Failure.LASTING, "ValueError"),
    ],
)
def test_what_an_error_means(error: Exception, failure: Failure, cause: str) -> None:
    assert failure_of(error) == (failure, cause)
