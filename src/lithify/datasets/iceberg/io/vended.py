"""Temporary credentials that a catalog vends for a table.

1. A REST catalog may respond with its own credentials for the table's files (vended credentials). The stores
   opened with them are used longer than they are valid: ledger, lease and holds are used as long as a service
   runs. So the store requests new credentials from the catalog whenever the present ones are about to expire.
2. A property has their expiry; without it, they expire `ASK_AGAIN_S` from now.
3. While the catalog does not respond, the present credentials stay in use, and the next request is sent
   `RETRY_S` later.

| store  | credentials                                                    | expiry                           |
|--------|----------------------------------------------------------------|----------------------------------|
| S3     | `s3.access-key-id`, `s3.secret-access-key`, `s3.session-token` | `s3.session-token-expires-at-ms` |
| Google | `gcs.oauth2.token`                                             | `gcs.oauth2.token-expires-at`    |
| Azure  | `adls.sas-token`, perhaps for an account (`azure_accounts`)    | `adls.sas-token-expires-at-ms`   |

Only these properties of a response for one table are used, and those that name the host (`with_vended`). Its
endpoint is used only with its own credentials, and then all of the operator's are removed.

Only REST catalogs are supported, because their response contains the table's metadata: other catalogs would
read the metadata through the same store that waits for its credentials.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from lithify.base.clock import Clock, SystemClock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError, Refused
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.io.azure_accounts import ENDS, TOKEN, of_account

ASK_AGAIN_S = 15 * 60
RETRY_S = 6 * 60
"""The delay of a retry. obstore requests new credentials five minutes before the expiry."""
MAX_MS = 4_102_444_800_000
"""The year 2100."""


@dataclass(frozen=True, slots=True)
class Vending:
    """How credentials for one kind of store are vended."""

    names: Mapping[str, str]
    """PyIceberg's properties, with obstore's names for them."""
    ends: str
    """The property with the expiry, in milliseconds."""
    endpoints: frozenset[str]
    """Properties that select the host."""
    more: frozenset[str] = frozenset()
    """Other properties that a response may have."""
    optional: frozenset[str] = frozenset()
    """Entries of `names` that a response may lack."""
    instead: tuple[str, ...] = ()
    """Prefixes of other properties with the operator's own credentials for the same store."""

    def are_in(self, given: Mapping[str, Any]) -> bool:
        """Return whether a response contains credentials."""
        return all(given.get(name) or name in self.optional for name in self.names)


S3 = Vending(
    {
        "s3.access-key-id": "access_key_id",
        "s3.secret-access-key": "secret_access_key",
        "s3.session-token": "token",
    },
    "s3.session-token-expires-at-ms",
    endpoints=frozenset({"s3.endpoint"}),
    more=frozenset(
        {
            "client.region",
            "s3.force-virtual-addressing",
            "s3.path-style-access",
            "s3.region",
            "s3.remote-signing-enabled",
        }
    ),
    optional=frozenset({"s3.session-token"}),
    instead=(
        "client.access-key-id",
        "client.secret-access-key",
        "client.session-token",
        "client.role-",
        "s3.role-",
        "s3.anonymous",
    ),
)
GOOGLE = Vending(
    {"gcs.oauth2.token": "token"},
    "gcs.oauth2.token-expires-at",
    endpoints=frozenset({"gcs.service.host"}),
    more=frozenset({"gcs.project-id"}),
)
AZURE = Vending(
    {TOKEN: "sas_token"},
    ENDS,
    endpoints=frozenset(
        {
            "adls.account-host",
            "adls.blob-storage-authority",
            "adls.blob-storage-scheme",
            "adls.dfs-storage-authority",
            "adls.dfs-storage-scheme",
        }
    ),
    more=frozenset({"adls.account-name"}),
    instead=("adls.account-key", "adls.client-", "adls.connection-string", "adls.tenant-id", "adls.token"),
)
_BY_SCHEME = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3),
    "gs": GOOGLE,
    **dict.fromkeys(("az", "abfs", "abfss"), AZURE),
}

VENDED = frozenset(
    name for kind in (S3, GOOGLE, AZURE) for name in (*kind.names, kind.ends, *kind.endpoints, *kind.more)
)
"""Properties of file access that a REST server may set."""
_HOST_PARTS = {
    "client.region": re.compile(r"[a-z0-9-]{1,40}"),
    "s3.region": re.compile(r"[a-z0-9-]{1,40}"),
    "adls.account-name": re.compile(r"[a-z0-9]{3,24}"),
}
"""Patterns of properties that become part of a host's name."""

_log = logging.getLogger("lithify")


class VendedCredentials:
    """The credentials of one table, in obstore's form. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, ...],
        properties: Mapping[str, Any],
        vending: Vending = S3,
        clock: Clock | None = None,
        *,
        location: str = "",
    ) -> None:
        """`properties` are those that the table at this location was just loaded with."""
        self._catalog = catalog
        self._identifier = identifier
        self._vending = vending
        self._clock = clock if clock is not None else SystemClock()
        self._lock = threading.Lock()
        self._location = location
        self._properties = of_account(location, properties)
        self._is_fresh = True

    def __call__(self) -> Any:
        """Return credentials in obstore's form for this kind of store."""
        with self._lock:
            again_s = ASK_AGAIN_S
            if not self._is_fresh:
                what = f"loading table {'.'.join(self._identifier)}"
                try:
                    with contained(what), translated(what):
                        given = self._catalog.load_table(self._identifier).io.properties
                        self._properties = of_account(self._location, given)
                except LithifyError as error:  # the present ones may still be valid
                    again_s = RETRY_S
                    _log.warning("the catalog returned no new credentials: %s", error)
            self._is_fresh = False
            ends_ms = self._clock.now_ms() + again_s * 1000
            if again_s == ASK_AGAIN_S:
                ends_ms = _ends_ms(self._properties, self._vending) or ends_ms
            current = {
                field: str(value)
                for name, field in self._vending.names.items()
                if (value := self._properties.get(name)) or name not in self._vending.optional
            }
            return {**current, "expires_at": datetime.fromtimestamp(ends_ms / 1000, UTC)}


def with_vended(own: Mapping[str, Any], answer: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return a catalog's properties with those of its server's response for one table (pure). Raise `Refused`
    if the response would send the operator's credentials to a host that the operator has not named."""
    properties = dict(own)
    for kind in (S3, GOOGLE, AZURE):
        _take(properties, kind, answer, table)
    return properties


def _take(properties: dict[str, Any], kind: Vending, answer: Mapping[str, Any], table: str) -> None:
    tokens = {name: value for name, value in answer.items() if _is_for_account(name, kind)}
    has_credentials = kind.are_in(answer) or any(name.startswith(f"{TOKEN}.") for name in tokens)
    for name in sorted(kind.endpoints | kind.more):
        given = str(answer.get(name) or "")
        if given in ("", properties.get(name)):
            continue
        if name in kind.endpoints and not has_credentials:
            raise Refused(
                f"table {table}: its catalog sets {name} to {given} without credentials for it; if your "
                f"credentials may be sent there, set {name} in the configuration of the catalog"
            )
        pattern = _HOST_PARTS.get(name)
        if pattern is not None and not pattern.fullmatch(given):
            raise Refused(f"table {table}: its catalog sets {name} to {given[:80]!r}, which is not valid")
        properties[name] = given
    if has_credentials:
        for name in _replaced(properties, kind):
            del properties[name]
        names = (*kind.names, kind.ends)
        properties |= {name: str(answer[name]) for name in names if answer.get(name)}
        properties |= {name: str(value) for name, value in tokens.items()}


def _is_for_account(name: str, kind: Vending) -> bool:
    return kind is AZURE and name.startswith((f"{TOKEN}.", f"{ENDS}."))


def _replaced(properties: Mapping[str, Any], kind: Vending) -> Iterable[str]:
    """Return the properties with the operator's own credentials for the same kind of store."""
    return [
        name
        for name in properties
        if name in kind.names or name == kind.ends or name.startswith(kind.instead)
    ]


def vended(table: Table) -> VendedCredentials | None:
    """Return the credentials of a table that was just loaded; `None` if they are not vended."""
    given, own = of_account(table.location(), table.io.properties), table.catalog.properties
    vending = _BY_SCHEME.get(table.location().partition("://")[0])
    if vending is None or not isinstance(table.catalog, RestCatalog):
        return None
    if not vending.are_in(given):
        return None
    if all(given.get(name) == own.get(name) for name in vending.names):
        return None
    return VendedCredentials(table.catalog, table.name(), given, vending, location=table.location())


def _ends_ms(properties: Mapping[str, Any], vending: Vending) -> int | None:
    """Return the expiry, or `None` if it is unknown."""
    try:
        ends_ms = int(properties[vending.ends])
    except (KeyError, ValueError, TypeError):
        return None
    return ends_ms if 0 < ends_ms < MAX_MS else None
