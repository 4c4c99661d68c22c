"""What obstore's errors mean. The texts are obstore's own, shortened; what a server can be made to do is in
`test_flaky.py`."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, InvalidPathError, PermissionDeniedError, UnauthenticatedError

from lithify.store.resilience.causes import failure_of, not_served, right_for, said_by
from lithify.store.resilience.retries import RequestFailure


def connecting(debug: str, url: str = "http://store:9000/b/k") -> GenericError:
    text = f"Generic S3 error: Error performing GET {url} in 1ms - HTTP error: error sending request"
    return GenericError(f"{text}\n\nDebug source:\n{debug}")


def provider(said: str) -> UnauthenticatedError:
    text = "The operation lacked valid authentication credentials for path External AWS credential provider"
    return UnauthenticatedError(f"{text}: {said}\n\nDebug source:\nPyErr")


@pytest.mark.parametrize(
    ("error", "failure", "cause"),
    [
        (
            connecting('Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }'),
            RequestFailure.PASSING,
            "connection refused",
        ),
        (
            connecting('"dns error", Custom { error: "failed to lookup address information" }'),
            RequestFailure.DOUBTFUL,
            "its host name is not found",
        ),
        (connecting("kind: Timeout, source: TimedOut"), RequestFailure.PASSING, "no answer in time"),
        (
            connecting("InvalidCertificate(UnknownIssuer)"),
            RequestFailure.DOUBTFUL,
            "its certificate is not trusted",
        ),
        (connecting("kind: Builder"), RequestFailure.LASTING, "no valid request can be built"),
        (
            connecting("kind: Timeout", "http://169.254.169.254/latest/api/token"),
            RequestFailure.DOUBTFUL,
            "no answer in time",
        ),
        (
            GenericError("Generic S3 error: Got invalid list response: syntax error"),
            RequestFailure.DOUBTFUL,
            "a listing that is not XML",
        ),
        (
            OSError("Generic S3 error: Error performing POST - HTTP error: request or response body error"),
            RequestFailure.PASSING,
            "the connection failed",
        ),
        (
            OSError("x: status code: 403 Forbidden: <Code>AccessDenied</Code>"),
            RequestFailure.LASTING,
            "403 Forbidden",
        ),
        (OSError("no space left on device"), RequestFailure.LASTING, "no space left on device"),
        (
            PermissionDeniedError("x: status code: 403 Forbidden: <Code>AccessDenied</Code>"),
            RequestFailure.LASTING,
            "403 Forbidden",
        ),
        (provider("StoreUnavailable: the portal is away"), RequestFailure.PASSING, "no credentials"),
        (provider("StoreError: log in"), RequestFailure.LASTING, "no credentials"),
        (InvalidPathError("the path is no path"), RequestFailure.LASTING, "InvalidPathError"),
        (ValueError("something else"), RequestFailure.LASTING, "ValueError"),
    ],
)
def test_what_an_error_means(error: Exception, failure: RequestFailure, cause: str) -> None:
    assert failure_of(error) == (failure, cause)


def test_who_gave_no_credentials_is_told_so() -> None:
    """The client has asked the machine for its role's, by an address that says nothing to most."""
    refused = GenericError(
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - "
        "Server returned non-2xx status code: 403 Forbidden: denied"
    )
    assert said_by(refused).startswith(
        "no credentials are given (in the environment, such as AWS_ACCESS_KEY_ID"
    )
    assert "169.254.169.254" in said_by(refused)
    assert said_by(connecting("x")) == str(connecting("x")).partition("\n")[0]


def test_a_missing_right_is_named() -> None:
    """Whoever may not list a bucket is denied what does not exist, too."""
    denied = PermissionDeniedError("x: status code: 403 Forbidden: <Code>AccessDenied</Code>")
    assert "s3:ListBucket" in right_for(denied, "list")
    assert "s3:ListBucket" in right_for(denied, "get")
    assert right_for(denied, "put") == ""
    assert right_for(GenericError("x: status code: 500 Internal Server Error"), "list") == ""


def test_a_profile_says_what_is_wrong_itself() -> None:
    assert said_by(provider("StoreError: log in with `aws sso login`")) == "log in with `aws sso login`"


@pytest.mark.parametrize("status", ["405 Method Not Allowed", "501 Not Implemented"])
def test_what_a_store_does_not_have(status: str) -> None:
    error = GenericError(f"Generic S3 error: Server returned non-2xx status code: {status}: <Code>X</Code>")
    assert f"this store does not list objects ({status}), which Lithify needs" in str(
        not_served(error, "list")
    )
    assert "does not support this operation" in str(not_served(error, "head"))
    assert not_served(GenericError("status code: 403 Forbidden: 405"), "list") is None
