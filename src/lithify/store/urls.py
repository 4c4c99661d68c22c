"""Opening a store by the URL of a dataset.

| URL | store, rooted at |
|---|---|
| a path, `file:///path`, `file:/path` | the local file system, `/` |
| `s3://bucket/prefix` (`s3a`, `s3n`) | the bucket |
| `gs://bucket/prefix` | the bucket |
| `az://container/prefix` (`azure`, `adl`, `abfs`, `abfss`, also `container@account…`) | the container |
| `memory://name/prefix` | the memory of this process, one store per name |

A store is rooted at the bucket, not at the dataset, because a dataset may refer to others in it.

Options are obstore's configuration names (`aws_endpoint`, `aws_region`, `google_service_account`,
`azure_storage_account_key`, …), its client options (`allow_http`, `timeout`, …, with or without the
provider's prefix), and `max_retries` and `retry_timeout_s`, which control retries
(`lithify.store.resilience.retries`) and override the caller's `WaitPolicy`. Missing options are taken from
the usual environment variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `AWS_ALLOW_HTTP`, …), and on S3 from a
profile (`aws_profiles`). An endpoint that begins with `http://` needs no `allow_http` (`endpoints`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit
from weakref import WeakValueDictionary

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, S3Store, from_url

from lithify.base.errors import Refused, StoreError
from lithify.store.aws_profiles import PROFILE_OPTION, Profile, find_profile, is_given
from lithify.store.endpoints import allow_http, find_endpoint, is_payload_unsigned, take_endpoint
from lithify.store.keys import check_key
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectStore
from lithify.store.remote import ObstoreStore, probe
from lithify.store.resilience.pace import UploadPace
from lithify.store.resilience.requests import Requests
from lithify.store.resilience.retries import FIRST_PAUSE_S, MAX_PAUSE_S
from lithify.store.resilience.waiting import StoreOutage, WaitPolicy

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Backend

WAIT_OPTION = "retry_timeout_s"
"""Seconds to wait for a request, `inf` for ever. The option is passed to tasks; stores that cannot be away
ignore it."""
SILENT_READ = "10s"
"""How long a connection may be silent. A hanging write is aborted then and counts as one whose answer was
lost. Reads are hedged long before (`lithify.store.resilience.hedging`)."""
_LONGEST_READ = "1h"
"""Limit for an answer that keeps arriving."""
_UPLOADS_RETRIES = 1_000_000
_MAX_KEPT = 32
_KEPT_S = 60.0
"""How long newly opened stores reuse a client. It also limits the use of revoked credentials, because a
client requests others only when they expire."""
_MAX_UPLOADS_WAIT_S = 7 * 86_400.0

_PROVIDER_PREFIXES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "aws_"),
    **dict.fromkeys(("gs",), "google_"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "azure_"),
}
CredentialProvider = Callable[[], Any]
"""Called by obstore for credentials, in its format for the kind of store."""
TOKEN_OPTION = "google_bearer_token"
"""A token for Google's store that does not expire while it is needed; obstore has no such option."""
_REGIONS = ("region", "default_region")
_CREDENTIALS = (
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    PROFILE_OPTION,
    TOKEN_OPTION,
    "azure_storage_sas_key",
)
_DROPPED = "\t\n\r"
"""Characters that `urlsplit` silently drops, so that the URL would name another place."""
SCHEMES = ("file", "memory", *_PROVIDER_PREFIXES)
"""Schemes of store URLs."""
_CLIENT_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)

_memory_stores: dict[str, ObjectStore] = {}
_memory_stores_lock = threading.Lock()
_known: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]]], StoreOutage] = WeakValueDictionary()
_known_lock = threading.Lock()
_shared: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]], WaitPolicy], ObstoreStore] = (
    WeakValueDictionary()
)
_shared_lock = threading.Lock()


def open_store(
    url: str,
    options: Mapping[str, str] | None = None,
    waiting: WaitPolicy | None = None,
    credentials: CredentialProvider | None = None,
) -> tuple[ObjectStore, str]:
    """Return the store that holds the dataset at `url`, and the dataset's key prefix in it. `waiting`
    controls how outages are handled. `credentials` replaces the credentials in the options; it is called
    whenever the previous ones are about to expire.

    The prefix has no slash at either end and is empty for a dataset at the root. `store.url` with the same
    options opens the same store again, also in another process (except `memory:`, which is private to a
    process).
    """
    if not url:
        raise Refused("the URL of the dataset is empty; give a path or a URL such as s3://bucket/prefix")
    scheme, rest = split_scheme(url)
    if scheme is None:
        return _local(url, url, options)
    parts = split_url(f"{scheme}:{rest}", url)
    path = unquote(parts.path)
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise Refused(f"{url}: names the host {parts.netloc}; write file:///path with three slashes")
        if not path.startswith("/"):
            raise Refused(f"{url}: has no absolute path; write file:///path with three slashes")
        return _local(url, path, options)
    if scheme not in SCHEMES:
        known = ", ".join(SCHEMES)
        raise Refused(f"{url}: the scheme {scheme!r} is not known; use a path or one of {known}")
    provider = _PROVIDER_PREFIXES.get(scheme)
    if not rest.startswith("//"):
        raise Refused(f"{url}: write {scheme}://…, or ./{url} if it is a path")
    if provider is None:
        return _memory(parts.netloc, options), _prefix(url, path)
    if not parts.netloc:
        raise Refused(f"{url}: names no bucket; write {scheme}://bucket/prefix")
    root = f"{scheme}://{parts.netloc}"
    waiting = waiting if waiting is not None else WaitPolicy()
    if credentials is None and waiting.is_shared:
        return _shared_remote(root, provider, options or {}, waiting), _prefix(url, path)
    return _remote(root, provider, options or {}, waiting, credentials), _prefix(url, path)


def split_url(whole: str, url: str) -> SplitResult:
    """Parse a URL, which the user gave as `url`. Raise `Refused` if it would name another place than it seems
    to."""
    dropped = next((odd for odd in _DROPPED if odd in whole), None)
    if dropped is not None:
        raise Refused(f"{url!r}: {dropped!r} cannot be part of a URL; write {quote(dropped)} instead")
    try:
        parts = urlsplit(whole)
    except ValueError as error:
        raise Refused(f"{url}: is not a URL: {error}") from error
    if parts.query or parts.fragment:
        raise Refused(f"{url}: a '?' or '#' cannot be part of the URL; write %3F or %23 if the path has one")
    return parts


def split_scheme(url: str) -> tuple[str | None, str]:
    """Return the scheme of a URL in lower case (`None` for a path) and the text after the colon. Raise
    `Refused` for a Windows path."""
    scheme, separator, rest = url.partition(":")
    if not separator or "/" in scheme:
        return None, url
    if len(scheme) == 1:
        raise Refused(f"{url}: seems to be a Windows path; Windows file systems are not supported")
    return scheme.lower(), rest


def settled_endpoint(url: str, options: Mapping[str, str]) -> str | None:
    """Return the endpoint that options or environment name for the provider of `url`. Raise `Refused` if the
    options name an endpoint that they do not allow. One from the environment may not be needed, so
    `open_store` checks that."""
    provider = _PROVIDER_PREFIXES[url.partition("://")[0]]
    config = {name.lower(): value for name, value in options.items()}
    endpoint = find_endpoint(provider, config, os.environ)
    try:
        allow_http(endpoint, _client_options(provider, dict(config)).get("allow_http"))
    except Refused:
        if endpoint is not None and endpoint.name in config:
            raise
        return None
    return endpoint.url if endpoint is not None else None


def _prefix(url: str, path: str) -> str:
    prefix = path.strip("/")
    try:
        return check_key(prefix) if prefix else ""
    except StoreError as error:
        raise Refused(f"{url}: {error}") from error


def _local(url: str, path: str, options: Mapping[str, str] | None) -> tuple[ObjectStore, str]:
    _no_options(url, options)
    try:  # not resolved: keep the names that the user gave, including symbolic links
        whole = os.path.normpath(Path(path).absolute())
    except OSError as error:
        raise Refused(f"{url}: the current folder does not exist any more; give an absolute path") from error
    return LocalStore(), _prefix(url, whole)


def _memory(name: str, options: Mapping[str, str] | None) -> ObjectStore:
    url = f"memory://{name}"
    _no_options(url, options)
    with _memory_stores_lock:
        return _memory_stores.setdefault(name, ObstoreStore(url, MemoryStore()))


def _no_options(url: str, options: Mapping[str, str] | None) -> None:
    given = sorted(set(options or ()) - {WAIT_OPTION})
    if given:
        raise Refused(f"{url}: this store takes no options, but {', '.join(given)} was given")


def with_wait(options: Mapping[str, str], waiting: WaitPolicy) -> dict[str, str]:
    """Return the options for a task with the same wait policy; explicit options take precedence."""
    return {WAIT_OPTION: f"{waiting.tasks_max_s:g}", **options}


def _shared_remote(root: str, provider: str, options: Mapping[str, str], waiting: WaitPolicy) -> ObjectStore:
    """Return one store for all callers with the same root, options and `waiting`."""
    key = root, frozenset(options.items()), waiting
    with _shared_lock:
        store = _shared.get(key)
        if store is None:
            _shared[key] = store = _remote(root, provider, options, waiting, None)
        return store


def _remote(
    root: str,
    provider: str,
    options: Mapping[str, str],
    waiting: WaitPolicy,
    credentials: CredentialProvider | None,
) -> ObstoreStore:
    config = {name.lower(): value for name, value in options.items()}
    token = config.pop(TOKEN_OPTION, None)
    if credentials is not None:
        config = {name: value for name, value in config.items() if name not in _CREDENTIALS}
    elif token is not None:
        credentials = partial(_lasting, token)
    try:
        waiting, max_retries = _retries(config, waiting)
        endpoint = find_endpoint(provider, config, os.environ)
        client = _client_options(provider, config)
        if (allowed := allow_http(endpoint, client.get("allow_http"))) is not None:
            client["allow_http"] = allowed
        take_endpoint(provider, config, endpoint)
        if provider == "aws_" and credentials is None:
            credentials = _profile(config)
        if provider == "aws_" and is_payload_unsigned(endpoint, config, os.environ):
            config["aws_unsigned_payload"] = "true"

        def backend(tries: int, max_s: float, client: Mapping[str, str]) -> Backend:
            if credentials is not None and not isinstance(credentials, Profile):
                return _new_client(root, provider, config, client, tries, max_s, credentials)
            said = frozenset(config.items()), frozenset(client.items()), frozenset(os.environ.items())
            period = int(time.monotonic() / _KEPT_S)
            return _kept_client(root, provider, *said, tries, max_s, credentials, period)

        quick = backend(0, 0, {"read_timeout": SILENT_READ, "timeout": _LONGEST_READ, **client})
        known = known_of(root, options) if waiting.comes_back else None
        requests = Requests(root, waiting, max_retries=max_retries, probe=lambda: probe(quick), known=known)
        pace = _pace_of(root, endpoint.url if endpoint is not None else None)

        @cache
        def uploads(limit_s: float) -> Backend:
            tries = _UPLOADS_RETRIES if max_retries is None else max_retries
            max_s = min(waiting.max_s, _MAX_UPLOADS_WAIT_S)
            return backend(tries, max_s, {"timeout": f"{limit_s:g}s", **client})

        return ObstoreStore(root, quick, requests, lambda: uploads(pace.limit_s), pace)
    except Refused as error:
        raise Refused(f"{root}: {error}") from error
    except (BaseError, ValueError, OverflowError) as error:
        cause = str(error).partition("\n\nDebug source")[0]
        raise Refused(f"{root}: the store cannot be opened with these options: {cause}") from error


def _new_client(
    root: str,
    provider: str,
    config: Mapping[str, str],
    client: Mapping[str, str],
    tries: int,
    max_s: float,
    credentials: CredentialProvider | None = None,
) -> Backend:
    """Return a client that sends each request once, or retries it up to `tries` times within `max_s`."""
    retries: RetryConfig = {"max_retries": tries}
    if tries:
        backoff: BackoffConfig = {
            "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
            "max_backoff": timedelta(seconds=MAX_PAUSE_S),
        }
        retries |= {"retry_timeout": timedelta(seconds=max_s), "backoff": backoff}
    given: dict[str, Any] = {"config": config, "retry_config": retries}
    given["client_options"] = cast("ClientConfig", client) if client else None
    if credentials is not None:
        given["credential_provider"] = credentials
    if provider == "aws_":  # `from_url` lacks the option that overrides all variables
        return S3Store(urlsplit(root).netloc, **given)
    return from_url(root, **given)


@lru_cache(maxsize=_MAX_KEPT)
def _kept_client(
    root: str,
    provider: str,
    config: frozenset[tuple[str, str]],
    client: frozenset[tuple[str, str]],
    environment: frozenset[tuple[str, str]],
    tries: int,
    max_s: float,
    profile: Profile | None,
    period: int,
) -> Backend:
    """Return one client per process for the same way of reaching a store, so that a task reuses the
    connections and credentials of earlier tasks. A new one is made in each `period`, because options may name
    files whose content changes."""
    return _new_client(root, provider, dict(config), dict(client), tries, max_s, profile)


@cache
def _pace_of(root: str, endpoint: str | None) -> UploadPace:
    """Return one pace per process for each bucket at an endpoint."""
    return UploadPace()


def _profile(config: dict[str, str]) -> Profile | None:
    """Return the profile to take credentials from, if any. Remove its name from `config`, and add its region
    unless another is given."""
    profile = find_profile(config, os.environ)
    config.pop(PROFILE_OPTION, None)
    if profile is not None and profile.region and not is_given(_REGIONS, config, os.environ):
        config["aws_region"] = profile.region
    return profile


def _lasting(token: str) -> dict[str, Any]:
    return {"token": token, "expires_at": None}


def known_of(root: str, options: Mapping[str, str]) -> StoreOutage:
    """Return the shared outage state of a store for given options; it exists as long as any client uses
    it."""
    key = root, frozenset(options.items())
    with _known_lock:
        known = _known.get(key)
        if known is None:
            _known[key] = known = StoreOutage()
        return known


def _retries(config: dict[str, str], waiting: WaitPolicy) -> tuple[WaitPolicy, int | None]:
    """Remove the retry options from `config`, and return the policy and number of retries."""
    given, tries = config.pop(WAIT_OPTION, None), config.pop("max_retries", None)
    max_s = waiting.max_s if given is None else float(given)
    if not max_s >= 0:
        raise ValueError(f"{WAIT_OPTION}={given} is not a number of seconds")
    max_retries = None if tries is None else int(tries)
    if max_retries is not None and max_retries < 0:
        raise ValueError(f"max_retries={tries} is negative")
    return replace(waiting, max_s=max_s), max_retries


def _client_options(provider: str, config: dict[str, str]) -> dict[str, str]:
    """Remove the client's options from `config`; take missing ones from the environment.

    obstore reads the environment only if it is given no client options at all. Reading both here keeps the
    result independent of the other options.
    """
    client: dict[str, str] = {}
    for name in _CLIENT_OPTIONS:
        prefixed = config.pop(f"{provider}{name}", os.environ.get(f"{provider}{name}".upper()))
        value = config.pop(name, prefixed)
        if value is not None:
            client[name] = value
    return client
