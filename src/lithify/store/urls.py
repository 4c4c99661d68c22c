"""Opening a store by the URL of a dataset.

| URL | store, rooted at |
|---|---|
| a path, `file:///path`, `file:/path` | the local file system, `/` |
| `s3://bucket/prefix` (`s3a`, `s3n`) | the bucket |
| `gs://bucket/prefix` | the bucket |
| `az://container/prefix` (`azure`, `adl`, `abfs`, `abfss`, also `container@account…`) | the container |
| `memory://name/prefix` | the memory of this process, one store per name |

A store is rooted at the bucket, not at the dataset, because a dataset may point at others in it.

Options are obstore's configuration names (`aws_endpoint`, `aws_region`, `google_service_account`,
`azure_storage_account_key`, …), its client options (`allow_http`, `timeout`, …, with or without the
provider's prefix), and `max_retries` and `retry_timeout_s`, which say how a failed request is made again
(`lithify.store.resilience.retries`) and win over what the caller says of waiting. What is not given is taken
from the usual environment variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `AWS_ALLOW_HTTP`, …), and on S3
from a profile (`aws_profiles`). An endpoint that is written as `http://…` needs no `allow_http`
(`endpoints`).
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
"""Seconds that a request is waited for, `inf` for ever. It travels to tasks, and stores that cannot be away
ignore it."""
SILENT_READ = "10s"
"""How long a connection may be silent: a write that hangs is cut off then and counts as one whose answer was
lost. Reads are asked for again long before that (`lithify.store.resilience.hedging`)."""
_LONGEST_READ = "1h"
"""An answer that goes on coming is not cut off before."""
_UPLOADS_RETRIES = 1_000_000
_MAX_KEPT = 32
_KEPT_S = 60.0
"""How long a client is used for what is opened anew. Credentials that were taken back early are in use no
longer than this: a client asks for others only when they end."""
_MAX_UPLOADS_WAIT_S = 7 * 86_400.0

_PROVIDER_PREFIXES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "aws_"),
    **dict.fromkeys(("gs",), "google_"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "azure_"),
}
CredentialProvider = Callable[[], Any]
"""What obstore asks for credentials, in the form that it has for the kind of store."""
TOKEN_OPTION = "google_bearer_token"
"""A token for Google's store that lasts for as long as it is needed; obstore has no such option."""
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
"""What `urlsplit` leaves out of a URL without a word, so that this would name another place."""
SCHEMES = ("file", "memory", *_PROVIDER_PREFIXES)
"""What a URL of a store begins with."""
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
    """The store that holds the dataset at `url`, and the dataset's key prefix in it. `waiting` says how it is
    waited for while it is away; `credentials` are asked for instead of those in the options, whenever the
    ones before are about to end.

    The prefix has no slash at either end and is empty for a dataset at the root. Opening
    `store.url` with the same options opens the same store again, in another process too (except
    `memory:`, which no other process can see).
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
            raise Refused(f"{url}: names no path from the root; write file:///path with three slashes")
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
    """The parts of a URL, which was given as `url`. `Refused` for one that would name another place than it
    seems to."""
    dropped = next((odd for odd in _DROPPED if odd in whole), None)
    if dropped is not None:
        raise Refused(f"{url!r}: {dropped!r} cannot be part of a URL; write {quote(dropped)} for it")
    try:
        parts = urlsplit(whole)
    except ValueError as error:
        raise Refused(f"{url}: is no URL: {error}") from error
    if parts.query or parts.fragment:
        raise Refused(f"{url}: a '?' or '#' cannot be part of the URL; write %3F or %23 if the path has one")
    return parts


def split_scheme(url: str) -> tuple[str | None, str]:
    """The scheme of a URL in small letters, `None` for a path, and what follows the colon. `Refused` for a
    path of Windows."""
    scheme, separator, rest = url.partition(":")
    if not separator or "/" in scheme:
        return None, url
    if len(scheme) == 1:
        raise Refused(f"{url}: looks like a path of Windows, whose file systems are not supported")
    return scheme.lower(), rest


def settled_endpoint(url: str, options: Mapping[str, str]) -> str | None:
    """The endpoint that the options or the environment name for the provider of `url`. `Refused` when the
    options do not allow their own; one of the environment that is not allowed may be nobody's concern, so
    it is left to `open_store`."""
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
    try:  # not resolved: the names on disk are the ones the user gave, symbolic links included
        whole = os.path.normpath(Path(path).absolute())
    except OSError as error:
        raise Refused(f"{url}: the current folder is gone; give a path from the root") from error
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
    """The options for a task that is to wait as long; what they say themselves stays."""
    return {WAIT_OPTION: f"{waiting.tasks_max_s:g}", **options}


def _shared_remote(root: str, provider: str, options: Mapping[str, str], waiting: WaitPolicy) -> ObjectStore:
    """One store for all who open the same one with the same options and `waiting`."""
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
    """A client that makes each request once, or again up to so many `tries` within `max_s`."""
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
    if provider == "aws_":  # `from_url` does not know the option that wins over every variable
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
    """One client, and its connections, for all in this process who reach a store the same way: a task goes
    on with those of the task before it, whose handshakes and credentials need not be asked for again. Not
    for longer than a `period`, since options may name files whose content changes."""
    return _new_client(root, provider, dict(config), dict(client), tries, max_s, profile)


@cache
def _pace_of(root: str, endpoint: str | None) -> UploadPace:
    """One for all in this process who reach a bucket there."""
    return UploadPace()


def _profile(config: dict[str, str]) -> Profile | None:
    """Return the profile whose credentials are used, if one's are; take its name out of `config`, and put
    its region there unless one is given."""
    profile = find_profile(config, os.environ)
    config.pop(PROFILE_OPTION, None)
    if profile is not None and profile.region and not is_given(_REGIONS, config, os.environ):
        config["aws_region"] = profile.region
    return profile


def _lasting(token: str) -> dict[str, Any]:
    return {"token": token, "expires_at": None}


def known_of(root: str, options: Mapping[str, str]) -> StoreOutage:
    """One for all in this process who reach a store with the same options, as long as any of them does."""
    key = root, frozenset(options.items())
    with _known_lock:
        known = _known.get(key)
        if known is None:
            _known[key] = known = StoreOutage()
        return known


def _retries(config: dict[str, str], waiting: WaitPolicy) -> tuple[WaitPolicy, int | None]:
    """Take out of `config` what it says of retries."""
    given, tries = config.pop(WAIT_OPTION, None), config.pop("max_retries", None)
    max_s = waiting.max_s if given is None else float(given)
    if not max_s >= 0:
        raise ValueError(f"{WAIT_OPTION}={given} is no number of seconds")
    max_retries = None if tries is None else int(tries)
    if max_retries is not None and max_retries < 0:
        raise ValueError(f"max_retries={tries} is less than none")
    return replace(waiting, max_s=max_s), max_retries


def _client_options(provider: str, config: dict[str, str]) -> dict[str, str]:
    """Take the client's options out of `config`, or from the environment.

    obstore reads the environment only when it is given no client options at all; so both are
    looked up here, and the answer does not depend on which others are given.
    """
    client: dict[str, str] = {}
    for name in _CLIENT_OPTIONS:
        prefixed = config.pop(f"{provider}{name}", os.environ.get(f"{provider}{name}".upper()))
        value = config.pop(name, prefixed)
        if value is not None:
            client[name] = value
    return client
