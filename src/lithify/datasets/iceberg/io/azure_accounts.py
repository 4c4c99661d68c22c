"""Tokens for single accounts of Azure, as catalogs vend them (Iceberg's REST catalog: credentials for Azure).

Of the properties `adls.sas-token.ACCOUNT` and `adls.sas-token.ACCOUNT.dfs.core.windows.net`, the one for the
account in the location, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…`, takes precedence over the plain
`adls.sas-token`. Its expiry is given in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

TOKEN, ENDS = "adls.sas-token", "adls.sas-token-expires-at-ms"


def account_of(location: str) -> str | None:
    """Return the account in a location of Azure."""
    parts = urlsplit(location)
    if parts.scheme not in ("abfs", "abfss") or "@" not in parts.netloc:
        return None
    return parts.netloc.rpartition("@")[2].partition(".")[0]


def of_account(location: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties with the token for this location's account, if any, as the plain token."""
    account = account_of(location)
    if account is None:
        return dict(properties)
    found = {
        plain: value
        for plain in (TOKEN, ENDS)
        for name, value in properties.items()
        if name.startswith(f"{plain}.") and name[len(plain) + 1 :].partition(".")[0] == account
    }
    return {**properties, **found}
