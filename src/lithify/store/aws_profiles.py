"""Credentials and the region of an AWS profile.

obstore reads environment variables and asks for the role of the machine. Other clients of S3, PyArrow among
them, read profiles too (`~/.aws/credentials` and `~/.aws/config`, or the files that
`AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE` name), so a store that they reach is reached here as well:

1. Access keys in options or in the environment come first.
2. Then comes the profile that the option `aws_profile` or the variable `AWS_PROFILE` names. `Refused` where
   there is no such profile.
3. Where neither names one, the environment's web identity or container credentials come first, then the
   profile `default`, then the role of the machine.
4. Keys of a profile are used as they are. What has to be fetched first (IAM Identity Center, which is SSO; an
   assumed role; a login; a process) botocore fetches where it is installed. `Refused` for a profile by name
   where it is not.

Credentials are read anew every few minutes, so those that another program renews in the files are taken up.
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
"""The option that names a profile; obstore has none."""
LASTS = timedelta(minutes=10)
"""Time until credentials are read anew; obstore asks five minutes before. botocore renews its own earlier."""
_DEFAULT = "default"
_KEYS = ("access_key_id", "skip_signature")
"""Options that say with which keys requests are signed, or that they are not."""
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables by which the environment gives credentials without keys."""
_FIRST = ("role_arn", "web_identity_token_file", "sso_session", "sso_start_url")
_LAST = ("credential_process", "login_session")
"""Settings of a profile by which its credentials are fetched: before keys in it count, and after."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile that has credentials. Callable as obstore calls a provider of credentials."""

    name: str
    credentials_file: str
    config_file: str
    region: str | None
    fetched_by: str | None
    """The setting by which its credentials are fetched; `None` where it has keys."""

    def __call__(self) -> Any:
        """Return credentials. `StoreUnavailable` where they cannot be fetched now, `StoreError` where they
        cannot be until a person acts."""
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
            raise StoreError(f"the AWS profile {self.name} has no keys any more")
        return found["aws_access_key_id"], found["aws_secret_access_key"], found.get("aws_session_token")

    def _fetch(self) -> tuple[str, str, str | None]:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
        from botocore.exceptions import ConnectionError as NoConnection

        try:
            fetched = _fetching(self.name, self.credentials_file, self.config_file)
            frozen = fetched.get_frozen_credentials()
        except (NoConnection, HTTPClientError) as error:
            raise StoreUnavailable(
                f"the AWS profile {self.name} gives no credentials ({self.fetched_by}): {error}",
                "no credentials",
            ) from error
        except (BotoCoreError, ClientError) as error:
            raise StoreError(f"{self._refused()}: {error}") from error
        return frozen.access_key, frozen.secret_key, frozen.token

    def _refused(self) -> str:
        text = f"the AWS profile {self.name} gives no credentials ({self.fetched_by})"
        is_sso = str(self.fetched_by).startswith("sso_")
        return f"{text}; log in with `aws sso login --profile {self.name}`" if is_sso else text


def are_given(options: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether options, the environment or a profile give credentials, as far as that can be known without
    asking for the machine's role."""
    if is_given(_KEYS, options, environ) or any(environ.get(name) for name in _ROLES):
        return True
    return find_profile(options, environ) is not None


def find_profile(options: Mapping[str, str], environ: Mapping[str, str]) -> Profile | None:
    """Return the profile whose credentials are used, if one's are. `options` have names in lower case.
    `Refused` where one is named and has no credentials, or none that can be had here."""
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
            return None  # the role of the machine may have some
        raise Refused(
            f"the AWS profile {name} has its credentials fetched ({fetched_by}), for which botocore is "
            "needed: install botocore, or put them into the environment with "
            f"`aws configure export-credentials --profile {name} --format env`"
        )
    if fetched_by is not None or _has_keys(found):
        return profile
    if named is None:
        return None
    lacks = "has no credentials" if found else "is not"
    raise Refused(
        f"the AWS profile {name} {lacks} in {credentials_file} and {config_file}; name one that "
        f"{'has' if found else 'is'}, or unset AWS_PROFILE"
    )


def is_given(names: Iterable[str], options: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether options, with or without the provider's prefix, or the environment give one of these."""
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
    """Return what both files say of a profile; the file with credentials wins."""
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
        raise Refused(f"{path}: cannot be read as a file of AWS profiles; repair it: {first}") from error


@lru_cache(maxsize=16)
def _fetching(name: str, credentials_file: str, config_file: str) -> Credentials:
    """Return the credentials of a profile as botocore fetches and renews them, the same ones for all stores
    of this process."""
    from botocore.session import Session

    for part in ("credentials", "tokens"):  # they log tracebacks of what is raised too
        logging.getLogger(f"botocore.{part}").setLevel(logging.CRITICAL)
    session = Session(profile=name)
    session.set_config_variable("credentials_file", credentials_file)
    session.set_config_variable("config_file", config_file)
    found: Credentials | None = session.get_credentials()
    if found is None:
        raise StoreError(f"the AWS profile {name} gives no credentials")
    return found
