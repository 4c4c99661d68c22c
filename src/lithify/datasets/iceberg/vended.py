"""Credentials that a catalog gives out for a table, for a while.

1. A REST catalog may answer with credentials of its own for the table's files on S3 (vended credentials).
   What is opened with them outlives them: the ledger, the lease and holds are kept as long as a service runs.
   So the store asks for credentials whenever those it has are about to end, and the catalog is asked anew.
2. When they end is what `s3.session-token-expires-at-ms` says; where nothing does, `ASK_AGAIN_S` from now.
3. While the catalog does not answer, those at hand stay in use, and it is asked again `RETRY_S` later.

Only of REST catalogs, whose answer has the table's metadata in it: another would read them by the very store
that waits for its credentials. Nor of other stores than S3.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from lithify.clock import Clock, SystemClock
from lithify.datasets.iceberg.errors import said

if TYPE_CHECKING:
    from obstore.store import S3Credential

ASK_AGAIN_S = 15 * 60
RETRY_S = 6 * 60
"""obstore asks five minutes before the end."""
_NAMES = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_ENDS = "s3.session-token-expires-at-ms"
MAX_MS = 4_102_444_800_000
"""The year 2100."""

_log = logging.getLogger("lithify")


class VendedCredentials:
    """Those of one table, as obstore asks for them. Safe to share between threads."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, ...],
        properties: Mapping[str, Any],
        clock: Clock | None = None,
    ) -> None:
        """`properties` are those that the table was loaded with a moment ago."""
        self._catalog = catalog
        self._identifier = identifier
        self._clock = clock if clock is not None else SystemClock()
        self._lock = threading.Lock()
        self._properties = properties
        self._is_fresh = True

    def __call__(self) -> S3Credential:
        with self._lock:
            again_s = ASK_AGAIN_S
            if not self._is_fresh:
                try:
                    self._properties = self._catalog.load_table(self._identifier).io.properties
                except Exception as error:  # whatever a catalog may answer; those at hand may do for a while
                    again_s = RETRY_S
                    _log.warning(
                        "table %s: the catalog gives no new credentials: %s",
                        ".".join(self._identifier),
                        said(error),
                    )
            self._is_fresh = False
            key, secret, token = (self._properties.get(name) for name in _NAMES)
            ends_ms = self._clock.now_ms() + again_s * 1000
            if again_s == ASK_AGAIN_S:
                ends_ms = _ends_ms(self._properties) or ends_ms
            return {
                "access_key_id": str(key),
                "secret_access_key": str(secret),
                "token": str(token),
                "expires_at": datetime.fromtimestamp(ends_ms / 1000, UTC),
            }


def vended(table: Table) -> VendedCredentials | None:
    """The credentials of a table that was just loaded; `None` where they are not vended."""
    given, own = table.io.properties, table.catalog.properties
    if not isinstance(table.catalog, RestCatalog) or not all(given.get(name) for name in _NAMES):
        return None
    if all(given.get(name) == own.get(name) for name in _NAMES):
        return None
    return VendedCredentials(table.catalog, table.name(), given)


def _ends_ms(properties: Mapping[str, Any]) -> int | None:
    """When they end, as far as that can be told."""
    try:
        ends_ms = int(properties[_ENDS])
    except (KeyError, ValueError, TypeError):
        return None
    return ends_ms if 0 < ends_ms < MAX_MS else None
