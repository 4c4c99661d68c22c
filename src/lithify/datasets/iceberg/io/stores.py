"""Object stores with tables' files, opened with the properties of PyIceberg's file access.

1. `open_place` opens the store of a location; `store_options` translates PyIceberg's properties.
2. A catalog's `FileStores` are the stores through which its tables' files are accessed in this process: those
   that a dataset has opened and lent, whose credentials are renewed, and otherwise those that the properties
   describe, each opened when its first file is needed.
3. Some files are left to PyIceberg: those of other schemes (local disks, HDFS, OSS), those on S3 that need
   another role, those on Azure in another account than the configured one, and those whose names PyIceberg
   interprets in its own way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from pyarrow.fs import resolve_s3_region
from pyiceberg.typedef import Properties

from lithify.base.errors import Refused, StoreError
from lithify.datasets.iceberg.io.azure_accounts import account_of, of_account
from lithify.datasets.iceberg.io.places import canonical
from lithify.datasets.iceberg.io.reach import EVERYWHERE, REACH, check_reach
from lithify.datasets.iceberg.io.store_file_io import Recent, StoredFile
from lithify.datasets.iceberg.io.vended import VendedCredentials
from lithify.store.aws_profiles import PROFILE_OPTION
from lithify.store.keys import check_key
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import TOKEN_OPTION, open_store, split_scheme, with_wait

STORES = "lithify.requests"
"""The key of a catalog's `FileStores` among its properties in this process."""
MAX_STORES = 1000
"""The maximum number of stores kept open: some catalogs vend other credentials every hour."""
_ROLES = ("s3.role-arn", "client.role-arn")
_REGIONS = ("s3.region", "client.region")
_CREDENTIALS = ("s3.", "client.", "gcs.", "adls.")

_STORE_OPTIONS = {
    "s3.endpoint": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "s3.anonymous": "aws_skip_signature",
    "s3.profile-name": PROFILE_OPTION,
    "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
    "s3.proxy-uri": "proxy_url",
    "gcs.service.host": "google_base_url",
    "gcs.oauth2.token": TOKEN_OPTION,
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_key",
    "adls.tenant-id": "azure_storage_tenant_id",
    "adls.client-id": "azure_storage_client_id",
    "adls.client-secret": "azure_storage_client_secret",
}
"""PyIceberg's settings of file access, and obstore's names for them."""
_FALLBACKS = {
    "s3.access-key-id": "client.access-key-id",
    "s3.secret-access-key": "client.secret-access-key",
    "s3.session-token": "client.session-token",
    "s3.region": "client.region",
    "s3.profile-name": "client.profile-name",
}
"""PyIceberg's fallback properties, common to file access and catalog."""
_TIMES_S = {"s3.connect-timeout": "connect_timeout", "s3.request-timeout": "timeout"}
_ALLOW_HTTP = ("allow_http", "aws_allow_http", "google_allow_http", "azure_allow_http")
_PREFIXES = {
    "s3": "s3.",
    "s3a": "s3.",
    "s3n": "s3.",
    "gs": "gcs.",
    "az": "adls.",
    "abfs": "adls.",
    "abfss": "adls.",
}


class FileStores:
    """The stores with the files of a catalog's tables, by root and access properties. Thread-safe. Sent to
    tasks without the stores."""

    def __init__(self, waiting: WaitPolicy | None = None) -> None:
        self.waiting = waiting if waiting is not None else WaitPolicy()
        self.recent = Recent()
        self._stores: OrderedDict[tuple[str, frozenset[tuple[str, Any]]], ObjectStore] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, tuple[float]]:
        return _elsewhere, (self.waiting.tasks_max_s,)

    def lend(self, store: ObjectStore, properties: Mapping[str, Any]) -> None:
        """Access files with the same properties through this store from now on, unless such files are left to
        PyIceberg."""
        if not _is_reachable(store.url, properties):
            return
        key = _key(store.url, properties)
        with self._lock:
            self._stores[key] = store
            self._stores.move_to_end(key)
            while len(self._stores) > MAX_STORES:
                self._stores.popitem(last=False)

    def file(self, location: str, properties: Mapping[str, Any]) -> StoredFile | None:
        """Return a file, within the reach or not; `None` if it is left to PyIceberg. Raise `Refused` if its
        store cannot be opened."""
        root = "/".join(location.split("/", 3)[:3])
        key = location[len(root) + 1 :]
        if not _is_reachable(root, properties) or not _is_plain(key):
            return None
        store = self._stores.get(_key(root, properties))
        if store is None:
            store, _ = open_place(root, {**_with_region(root, properties), REACH: EVERYWHERE})
            self.lend(store, properties)
        return StoredFile(location, store, key, self.recent)


def _elsewhere(max_s: float) -> FileStores:
    return FileStores(WaitPolicy(max_s, tasks_max_s=max_s))


def stores_of(properties: Mapping[str, Any]) -> FileStores | None:
    """Return the stores of file access with these properties; `None` if Lithify did not open its catalog."""
    stores = properties.get(STORES)
    return stores if isinstance(stores, FileStores) else None


def waiting_of(properties: Mapping[str, Any]) -> WaitPolicy:
    """Return the wait policy of files that are accessed with these properties."""
    stores = stores_of(properties)
    return stores.waiting if stores is not None else WaitPolicy()


def lend(store: ObjectStore, properties: Mapping[str, Any]) -> None:
    """From now on, access the files of tables with these properties through `store`, if they are in it and it
    can be lent."""
    stores = stores_of(properties)
    if stores is not None:
        stores.lend(store, properties)


def forget_metadata(properties: Mapping[str, Any]) -> None:
    """Drop cached metadata files of these properties, so that they are read again."""
    stores = stores_of(properties)
    if stores is not None:
        stores.recent.forget_all()


def _key(root: str, properties: Mapping[str, Any]) -> tuple[str, frozenset[tuple[str, Any]]]:
    credentials = ((name, str(v)) for name, v in properties.items() if name.startswith(_CREDENTIALS))
    return canonical(root), frozenset(credentials)


def _is_reachable(root: str, properties: Mapping[str, Any]) -> bool:
    """Return whether Lithify's store for this root is the one that PyIceberg would access."""
    prefix = _PREFIXES.get(split_scheme(root)[0] or "")
    if prefix == "s3.":
        return not any(name in properties for name in _ROLES)
    account = account_of(root)
    return prefix is not None and account in (None, properties.get("adls.account-name") or account)


def _is_plain(key: str) -> bool:
    """Return whether all programs interpret the key as the same object: PyIceberg cuts it at some
    characters."""
    if not key.isprintable() or "?" in key or "#" in key:
        return False
    try:
        check_key(key)
    except StoreError:
        return False
    return True


def _with_region(root: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Add the region of an AWS bucket if the properties leave it open, as PyIceberg does: it may differ from
    the region of this machine."""
    is_named = any(properties.get(name) for name in _REGIONS)
    is_asked = str(properties.get("s3.resolve-region")).lower() == "true"
    if root.startswith("s3") and not properties.get("s3.endpoint") and (is_asked or not is_named):
        with suppress(OSError):
            return {**properties, "s3.region": resolve_s3_region(root.partition("://")[2])}
    return dict(properties)


def open_place(
    location: str, properties: Properties, credentials: VendedCredentials | None = None
) -> tuple[ObjectStore, str]:
    """Return the store of a table's location, and the location's key in it. `credentials` are requested
    repeatedly and replace those in the properties, which may expire.

    Iceberg's locations are not URLs: a percent sign is a literal percent sign.
    """
    check_reach(location, properties)
    if "?" in location or "#" in location:
        raise Refused(
            f"{location}: PyIceberg truncates a location at '?' and '#'; move the table to a location "
            "without them"
        )
    scheme, rest = split_scheme(location)
    if scheme is None and not location.startswith("/"):
        raise Refused(
            f"{location}: is relative, so it differs between processes; move the table to an absolute "
            "location"
        )
    if scheme == "file" and rest.startswith("//") and not rest.startswith("///"):
        raise Refused(f"{location}: contains a host, which PyIceberg treats as a folder; write file:///path")
    url = location if scheme is None else f"{scheme}:{quote(rest, safe='/@:')}"
    return open_store(url, store_options(location, properties), waiting_of(properties), credentials)


def task_options(location: str, properties: Properties) -> dict[str, str]:
    """Return `store_options` for a task, with its time limits for waiting."""
    return with_wait(store_options(location, properties), waiting_of(properties))


def store_options(location: str, properties: Properties) -> dict[str, str]:
    """Return the options with which `open_store` reaches the same location as PyIceberg."""
    prefix = _PREFIXES.get(urlsplit(location).scheme)
    if prefix is None:
        return {}
    properties = of_account(location, properties)

    def value(key: str) -> str | None:
        found = properties.get(key) or properties.get(_FALLBACKS.get(key, ""))
        return str(found) if found else None

    options = {
        name: given
        for key, name in _STORE_OPTIONS.items()
        if key.startswith(prefix) and (given := value(key)) is not None
    }
    options |= {
        name: f"{round(float(given) * 1000)}ms"
        for key, name in _TIMES_S.items()
        if key.startswith(prefix) and (given := value(key)) is not None
    }
    options |= {name: str(properties[name]) for name in _ALLOW_HTTP if properties.get(name)}
    if prefix == "adls." and (endpoint := _azure_endpoint(properties)) is not None:
        options["azure_storage_endpoint"] = endpoint
    if "://" not in options.get("aws_endpoint", "://"):
        options["aws_endpoint"] = f"https://{options['aws_endpoint']}"  # as PyIceberg reads it
    return options


def _azure_endpoint(properties: Properties) -> str | None:
    """Return the endpoint to which PyIceberg (that is, Arrow) sends requests for Azure, if not to Azure."""
    authority, account = properties.get("adls.blob-storage-authority"), properties.get("adls.account-name")
    if not authority:
        return None
    scheme = properties.get("adls.blob-storage-scheme") or "https"
    path = f"{account}{authority}" if authority.startswith(".") else f"{authority}/{account}"
    return f"{scheme}://{path}"


def as_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Rename options of a database's store to PyIceberg's properties; keep other options as they are."""
    names = {name: key for key, name in _STORE_OPTIONS.items()}
    return {names.get(name.lower(), name): value for name, value in options.items()}
