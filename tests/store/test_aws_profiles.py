"""Profiles of AWS: a store that other clients reach by them is reached here, by the same credentials.
botocore judges which these are, and a server sees which of them sign a request."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import EndpointConnectionError

from lithify.base.errors import ObjectNotFound, Refused, StoreUnavailable
from lithify.store import aws_profiles
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store
from tests import serving

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without anything of AWS, on a machine without a role."""
    for name in aws_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    aws_profiles._fetching.cache_clear()
    return tmp_path


def aws_variables() -> list[str]:
    return [name for name in os.environ if name.startswith("AWS_")]


def write(home: Path, credentials: str = "", config: str = "") -> None:
    (home / ".aws" / "credentials").write_text(credentials)
    (home / ".aws" / "config").write_text(config)


class Shown:
    """What a server is shown."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str, str | None]] = []
        self.answers: dict[str, Any] = {}

    def options(self, **more: str) -> dict[str, str]:
        return {"aws_endpoint": self.url, **more}

    def by(self, **more: str) -> tuple[str, str, str | None]:
        """The key, the region and the token of the next request to a store."""
        store, _ = open_store("s3://bucket", self.options(**more), WaitPolicy(0))
        with pytest.raises(ObjectNotFound):
            store.head("k")
        return self.requests[-1]


@pytest.fixture
def shown() -> Iterator[Shown]:
    found: list[Shown] = []

    class Handler(serving.Handler):
        def _answer(self) -> None:
            signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/", self.headers.get("Authorization") or "")
            path = self.path.partition("?")[0]
            if signed is not None and path not in found[0].answers:
                token = self.headers.get("x-amz-security-token")
                found[0].requests.append((signed[1], signed[2], token))
            status, document = found[0].answers.get(path, (404, None))
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = _answer

    with serving.serving(Handler) as url:
        found.append(Shown(url))
        yield found[0]


class Failing:
    """Credentials that cannot be had."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_frozen_credentials(self) -> Any:
        raise self._error


def as_botocore_finds() -> tuple[str, str | None]:
    keys = botocore.session.Session().get_credentials().get_frozen_credentials()
    return keys.access_key, keys.token


KEYS = "aws_access_key_id = {0}\naws_secret_access_key = secret\n"
BOTH = f"[default]\n{KEYS.format('of-default')}\n[work]\n{KEYS.format('of-work')}aws_session_token = token\n"


@pytest.mark.parametrize(
    ("environ", "credentials", "config", "expected"),
    [
        ({}, BOTH, "", ("of-default", "us-east-1", None)),
        ({"AWS_PROFILE": "work"}, BOTH, "", ("of-work", "us-east-1", "token")),
        ({"AWS_PROFILE": "work"}, BOTH, "[profile work]\nregion = eu-1", ("of-work", "eu-1", "token")),
        (
            {"AWS_PROFILE": "work", "AWS_REGION": "us-2"},
            BOTH,
            "[profile work]\nregion = eu-1",
            ("of-work", "us-2", "token"),
        ),
        ({"AWS_PROFILE": "a b"}, "", f"[profile 'a b']\n{KEYS.format('c')}", ("c", "us-east-1", None)),
        ({}, "", f"[default]\ns3 =\n  max_queue_size = 1\n{KEYS.format('c')}", ("c", "us-east-1", None)),
        (
            {"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "s"},
            BOTH,
            "",
            ("own", "us-east-1", None),
        ),
    ],
)
def test_whose_keys_sign(
    home: Path,
    shown: Shown,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    credentials: str,
    config: str,
    expected: tuple[str, str, str | None],
) -> None:
    write(home, credentials, config)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert shown.by() == expected
    assert as_botocore_finds() == (expected[0], expected[2])


def test_pyarrow_signs_with_the_same(home: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own PyArrow would read the files anew."""
    write(home, BOTH)
    monkeypatch.setenv("AWS_PROFILE", "work")
    ours = shown.by()
    script = (
        "from pyarrow.fs import S3FileSystem\n"
        f"S3FileSystem(endpoint_override={shown.url!r}, region='us-east-1').get_file_info('bucket/k')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
    assert shown.requests[-1] == ours


def test_a_profile_may_be_named_by_an_option(home: Path, shown: Shown) -> None:
    write(home, BOTH)
    assert shown.by(aws_profile="work")[0] == "of-work"
    assert shown.by(AWS_PROFILE="work")[0] == "of-work"
    assert shown.by(aws_access_key_id="own", aws_secret_access_key="s", aws_profile="work")[0] == "own"


def test_files_may_lie_elsewhere(home: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "c").write_text(BOTH)
    (home / "d").write_text("[default]\nregion = eu-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "c"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "d"))
    assert shown.by() == ("of-default", "eu-1", None)


def test_keys_that_were_renewed_are_taken_up(home: Path) -> None:
    write(home, BOTH)
    profile = aws_profiles.find_profile({}, {"HOME": str(home), "AWS_PROFILE": "work"})
    assert profile is not None
    first = profile()
    assert first["expires_at"] - datetime.now(UTC) <= aws_profiles.LASTS
    write(home, BOTH.replace("token", "newer", 2).replace("aws_session_newer", "aws_session_token"))
    assert (first["token"], profile()["token"]) == ("token", "newer")


SSO = (
    "[profile work]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\nregion = us-east-1\n"
    "[sso-session s]\nsso_region = us-east-1\nsso_start_url = https://start\n"
)


def log_in(home: Path, ends: datetime) -> None:
    """As `aws sso login` leaves it."""
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    token = {"startUrl": "https://start", "region": "us-east-1", "accessToken": "t"}
    document = {**token, "expiresAt": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
    (cache / f"{hashlib.sha1(b's').hexdigest()}.json").write_text(json.dumps(document))


OPENED = """
import os, sys
from lithify.base.errors import ObjectNotFound, StoreError
from lithify.store.urls import open_store
from lithify.store.resilience.waiting import WaitPolicy

store, _ = open_store("s3://bucket", {"aws_endpoint": sys.argv[1]}, WaitPolicy(60))
for _ in sys.stdin:
    try:
        store.head("k")
    except ObjectNotFound:
        print("no such object", flush=True)
    except StoreError as error:
        print(error, flush=True)
"""


def test_sso(home: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused says what to do, and that done, it works, without being opened anew. In a process of
    its own, for botocore looks where the user's files are but once."""
    write(home, "", SSO)
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", shown.url)
    ends_ms = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    given = {"accessKeyId": "fetched", "secretAccessKey": "s", "sessionToken": "t2", "expiration": ends_ms}
    shown.answers["/federation/credentials"] = (200, {"roleCredentials": given})
    with subprocess.Popen(
        [sys.executable, "-c", OPENED, shown.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print("go", file=process.stdin, flush=True)
        assert process.stdout.readline() == (
            "head k: the AWS profile work provides no credentials (sso_session); log in with `aws sso login "
            "--profile work`: Error loading SSO Token: Token for s does not exist\n"
        )
        assert not shown.requests
        log_in(home, datetime.now(UTC) + timedelta(hours=8))
        print("go", file=process.stdin, flush=True)
        assert process.stdout.readline() == "no such object\n"
        _, stderr = process.communicate(timeout=60)
    assert stderr == ""
    assert shown.requests[-1] == ("fetched", "us-east-1", "t2")


def test_a_portal_that_is_away_is_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "", SSO)
    away = EndpointConnectionError(endpoint_url="https://portal")
    monkeypatch.setattr(aws_profiles, "_fetching", lambda *of: Failing(away))
    profile = aws_profiles.find_profile({}, {"HOME": str(home), "AWS_PROFILE": "work"})
    assert profile is not None
    with pytest.raises(StoreUnavailable, match=r"profile work provides no credentials .*https://portal"):
        profile()
    store, _ = open_store("s3://bucket", {"aws_endpoint": NOBODY, "aws_profile": "work"}, WaitPolicy(0))
    with pytest.raises(StoreUnavailable):
        store.head("k")


def test_what_a_process_gives(home: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.dumps({"Version": 1, "AccessKeyId": "made", "SecretAccessKey": "s"})
    (home / "keys.json").write_text(given)
    write(home, "", f"[profile work]\ncredential_process = cat {home}/keys.json\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert shown.by()[0] == "made"


def test_without_botocore(home: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, BOTH, SSO.replace("profile work", "profile sso") + "[profile default]\nregion = eu-1\n")
    monkeypatch.setattr(aws_profiles, "find_spec", lambda name: None)
    assert shown.by()[0] == "of-default"
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(Refused, match=r"profile sso fetches its credentials .*install botocore, or put"):
        open_store("s3://bucket", shown.options())


@pytest.mark.parametrize(
    ("credentials", "config", "says"),
    [
        (BOTH, "", "the AWS profile gone does not exist in .*credentials and .*config; name one that"),
        (
            BOTH,
            "[profile gone]\nregion = x",
            "the AWS profile gone has no credentials in .*; name one that has some",
        ),
        (
            "no section\n",
            "",
            "credentials: is not a valid file of AWS profiles; repair it: File contains",
        ),
    ],
)
def test_what_is_refused(
    home: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch, credentials: str, config: str, says: str
) -> None:
    write(home, credentials, config)
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with pytest.raises(Refused, match=f"s3://bucket: .*{says}"):
        open_store("s3://bucket", shown.options())
    assert not shown.requests


def test_a_default_profile_without_credentials_is_no_obstacle(home: Path, shown: Shown) -> None:
    """The machine's role is asked, as before."""
    write(home, "", "[default]\nregion = eu-1\n")
    assert aws_profiles.find_profile({}, {"HOME": str(home)}) is None
    ours = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "HOME": str(home)}
    write(home, BOTH)
    assert aws_profiles.find_profile({}, ours) is None
    assert aws_profiles.find_profile({}, {**ours, "AWS_PROFILE": "work"}) is not None
