"""Tokens for single accounts of Azure, as catalogs vend them (Iceberg's REST catalog: credentials for Azure).

Of those called `adls.sas-token.ACCOUNT` or `adls.sas-token.ACCOUNT.dfs.core.windows.net` that one counts
whose account is named by the location, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…`, rather than the
plain `adls.sas-token`. When it ends is said in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

TOKEN, ENDS = "adls.sas-token", "adls.sas-token-expires-at-ms"


def account_of(location: str) -> str | None:
    """The account that a location of Azure names."""
    parts = urlsplit(location)
    if parts.scheme not in ("abfs", "abfss") or "@" not in parts.netloc:
        return None
    return parts.netloc.rpartition("@")[2].partition(".")[0]


def of_account(location: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties with the token for the account of this location, if there is one, as the plain one."""
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
