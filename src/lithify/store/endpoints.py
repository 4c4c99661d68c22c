"""A store's endpoint from options and environment, and whether it may be used without encryption (pure).

1. An option names the endpoint, under any of its names; else an environment variable, the most specific
   first. Azure's emulator has an endpoint of its own.
2. With an `http://…` endpoint, `allow_http` is true unless set explicitly.
3. An `http://…` endpoint with `allow_http=false` is refused, before any request.
4. TLS protects payloads to S3, so they are not signed then, which would cost a sixth of a task's time.
   Without TLS they are signed. `aws_unsigned_payload` takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from lithify.base.errors import Refused

_NAMES = {
    "aws_": ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"),
    "google_": ("google_base_url", "base_url"),
    "azure_": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
}
"""By provider: obstore's names for the endpoint, the most specific first."""
_UNSIGNED = ("aws_unsigned_payload", "unsigned_payload")
_EMULATOR = ("azure_storage_use_emulator", "azure_use_emulator", "use_emulator")
_EMULATOR_VARIABLE = "AZURITE_BLOB_STORAGE_URL"
_EMULATOR_URL = "http://127.0.0.1:10000"
_NO = frozenset({"false", "0", "no", "n", "off"})
_YES = frozenset({"true", "1", "yes", "y", "on"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An explicitly configured endpoint."""

    url: str
    name: str
    """The option or the environment variable that names it."""


def find_endpoint(provider: str, options: Mapping[str, str], environ: Mapping[str, str]) -> Endpoint | None:
    """Return the configured endpoint, `None` for the provider's own. `options` have names in lower case."""
    if provider == "azure_" and (emulator := _emulator(options, environ)) is not None:
        return emulator
    names = _NAMES[provider]
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise Refused(f"{' and '.join(given)} name the same setting of the store; give only one of them")
    if given:
        return Endpoint(options[given[0]], given[0])
    variables = (name.upper() for name in names if name.startswith(provider))
    return next((Endpoint(environ[name], name) for name in variables if environ.get(name)), None)


def take_endpoint(provider: str, options: dict[str, str], endpoint: Endpoint | None) -> None:
    """Reduce the endpoint's names in `options` to one that takes precedence over environment variables."""
    if endpoint is None or endpoint.name in (*_EMULATOR, _EMULATOR_VARIABLE):
        return
    for name in _NAMES[provider]:
        options.pop(name, None)
    options[_NAMES[provider][0]] = endpoint.url


def allow_http(endpoint: Endpoint | None, said: str | None) -> str | None:
    """Return the client's option `allow_http`, given its configured value `said`. Raise `Refused` if that
    contradicts the endpoint, or if the endpoint is not a URL."""
    if endpoint is None:
        return said
    try:
        parts = urlsplit(endpoint.url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise Refused(
            f"{endpoint.name}={endpoint.url} is not an endpoint; write http://host:port or https://…"
        )
    if parts.scheme == "https":
        return said
    if said is not None and said.lower() in _NO:
        raise Refused(
            f"{endpoint.name}={endpoint.url} is not encrypted, which allow_http={said} forbids; "
            "write https://… or leave allow_http out"
        )
    return "true" if said is None else said


def is_payload_unsigned(
    endpoint: Endpoint | None, options: Mapping[str, str], environ: Mapping[str, str]
) -> bool:
    """Return whether to leave payloads to S3 unsigned; `False` if options or environment set it."""
    if any(name in options for name in _UNSIGNED) or _UNSIGNED[0].upper() in environ:
        return False
    return endpoint is None or endpoint.url.lower().startswith("https:")


def _emulator(options: Mapping[str, str], environ: Mapping[str, str]) -> Endpoint | None:
    for name in _EMULATOR:
        said = options.get(name, environ.get(name.upper()) if name.startswith("azure_") else None)
        if said is not None:
            if said.lower() not in _YES:
                return None
            if environ.get(_EMULATOR_VARIABLE):
                return Endpoint(environ[_EMULATOR_VARIABLE], _EMULATOR_VARIABLE)
            return Endpoint(_EMULATOR_URL, name)
    return None
