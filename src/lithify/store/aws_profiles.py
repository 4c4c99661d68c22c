"""Credentials and region of an AWS profile.

obstore reads only environment variables and the role of the machine. Other clients of S3, such as PyArrow,
also read profiles (`~/.aws/credentials` and `~/.aws/config`, or the files in `AWS_SHARED_CREDENTIALS_FILE`
and `AWS_CONFIG_FILE`), so Lithify reads them too:

1. Access keys in options or in the environment come first.
2. Then comes the profile named by the option `aws_profile` or the variable `AWS_PROFILE`. If it does not
   exist, `Refused` is raised.
3. Without a named profile, the environment's web identity or container credentials come first, then the
   profile `default`, then the role of the machine.
4. Keys in a profile are used as they are. Credentials that must be fetched first (IAM Identity Center, which
   is SSO; an assumed role; a login; a process) are fetched by botocore. If it is not installed, `Refused` is
   raised for a named profile.

Credentials are read again every few minutes, because another program may renew them in the files.
"""

from __future__ import annotations

import configparser
import logging
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lithify.base.errors import Refused, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from botocore.credentials import Credentials

PROFILE_OPTION = "aws_profile"
"""The option that names a profile; obstore has no such option."""
LASTS = timedelta(minutes=10)
"""Time until credentials are read again; obstore does so five minutes before. botocore renews its own
earlier."""
_DEFAULT = "default"
_KEYS = ("access_key_id", "skip_signature")
"""Options with the keys that sign requests, or that turn signatures off."""
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables through which the environment gives credentials without keys."""
_FIRST = ("role_arn", "web_identity_token_file", "sso_session", "sso_start_url")
_LAST = ("credential_process", "login_session")
"""Settings of a profile for fetching its credentials: those that override keys in the profile, and those that
keys override."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile with credentials. Callable in the way obstore calls a provider of credentials."""

    name: str
    credentials_file: str
    config_file: str
    region: str | None
    fetched_by: str | None
    """The setting by which credentials are fetched; `None` if the profile has keys."""

    def __call__(self) -> Any:
        """Return credentials. Raise `StoreUnavailable` if they cannot be fetched now, `StoreError` if a
        person must act first."""
        access_key, secret_key, token = self._read() if self.fetched_by is None else self._fetch()
        return {
            "access_key_id": access_key,
            "secret_access_key": secret_key,
            "token": token or None,
            "expires_at": datetime.now(UTC) + LASTS,
        }

    def _read(self) -> tuple[str, str, str | None]:
        found = _settings(self.name, self.credentials_file, self.config_file)
        if not _has_keys(found):
            raise StoreError(f"the AWS profile {self.name} no longer has keys")
        return found["aws_access_key_id"], found["aws_secret_access_key"], found.get("aws_session_token")

    def _fetch(self) -> tuple[str, str, str | None]:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
        from botocore.exceptions import ConnectionError as NoConnection

        try:
            fetched = _fetching(self.name, self.credentials_file, self.config_file)
            frozen = fetched.get_frozen_credentials()
        except (NoConnection, HTTPClientError) as error:
            raise StoreUnavailable(
                f"the AWS profile {self.name} provides no credentials ({self.fetched_by}): {error}",
                "no credentials",
            ) from error
        except (BotoCoreError, ClientError) as error:
            raise StoreError(f"{self._refused()}: {error}") from error
        return frozen.access_key, frozen.secret_key, frozen.token

    def _refused(self) -> str:
        text = f"the AWS profile {self.name} provides no credentials ({self.fetched_by})"
        is_sso = str(self.fetched_by).startswith("sso_")
        return f"{text}; log in with `aws sso login --profile {self.name}`" if is_sso else text


def are_given(options: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return whether options, environment or a profile give credentials. The machine's role is not
    requested."""
    if is_given(_KEYS, options, environ) or any(environ.get(name) for name in _ROLES):
        return True
    return find_profile(options, environ) is not None


def find_profile(options: Mapping[str, str], environ: Mapping[str, str]) -> Profile | None:
    """Return the profile to take credentials from, if any. `options` have names in lower case. Raise
    `Refused` if the named profile has no credentials, or they cannot be fetched here."""
    if is_given(_KEYS, options, environ):
        return None
    named = options.get(PROFILE_OPTION) or environ.get("AWS_PROFILE")
    if named is None and any(environ.get(name) for name in _ROLES):
        return None
    home = Path(environ.get("HOME") or "~").expanduser()
    credentials_file = environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws" / "credentials")
    config_file = environ.get("AWS_CONFIG_FILE") or str(home / ".aws" / "config")
    name = named or _DEFAULT
    found = _settings(name, credentials_file, config_file)
    fetched_by = _fetched_by(found)
    region = found.get("region")
    profile = Profile(name, credentials_file, config_file, region, fetched_by)
    if fetched_by is not None and find_spec("botocore") is None:
        if named is None:
            return None  # the role of the machine may have credentials
        raise Refused(
            f"the AWS profile {name} fetches its credentials ({fetched_by}), which needs botocore: "
            "install botocore, or put the credentials into the environment with "
            f"`aws configure export-credentials --profile {name} --format env`"
        )
    if fetched_by is not None or _has_keys(found):
        return profile
    if named is None:
        return None
    lacks = "has no credentials" if found else "does not exist"
    raise Refused(
        f"the AWS profile {name} {lacks} in {credentials_file} and {config_file}; name one that "
        f"{'has some' if found else 'exists'}, or unset AWS_PROFILE"
    )


def is_given(names: Iterable[str], options: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return whether options, with or without the provider's prefix, or the environment set one of
    `names`."""
    return any(
        options.get(name) or options.get(f"aws_{name}") or environ.get(f"AWS_{name.upper()}")
        for name in names
    )


def _fetched_by(settings: Mapping[str, str]) -> str | None:
    names = (*_FIRST, *(() if _has_keys(settings) else _LAST))
    return next((name for name in names if settings.get(name)), None)


def _has_keys(settings: Mapping[str, str]) -> bool:
    return bool(settings.get("aws_access_key_id") and settings.get("aws_secret_access_key"))


def _settings(name: str, credentials_file: str, config_file: str) -> dict[str, str]:
    """Return a profile's settings from both files; the file with credentials takes precedence."""
    in_config = _sections(config_file)
    sections = (in_config.get(f"profile {name}"), in_config.get(name) if name == _DEFAULT else None)
    found: dict[str, str] = {}
    for section in (*sections, _sections(credentials_file).get(name)):
        found |= section or {}
    return found


def _sections(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False, default_section="")
    try:
        parser.read_string(Path(path).read_text())
        return {" ".join(shlex.split(name)): dict(parser.items(name)) for name in parser.sections()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, configparser.Error) as error:
        first = str(error).partition("\n")[0]
        raise Refused(f"{path}: is not a valid file of AWS profiles; repair it: {first}") from error


@lru_cache(maxsize=16)
def _fetching(name: str, credentials_file: str, config_file: str) -> Credentials:
    """Return credentials that botocore fetches and renews, shared by all stores of this process."""
    from botocore.session import Session

    for part in ("credentials", "tokens"):  # their log repeats raised errors with tracebacks
        logging.getLogger(f"botocore.{part}").setLevel(logging.CRITICAL)
    session = Session(profile=name)
    session.set_config_variable("credentials_file", credentials_file)
    session.set_config_variable("config_file", config_file)
    found: Credentials | None = session.get_credentials()
    if found is None:
        raise StoreError(f"the AWS profile {name} provides no credentials")
    return found
