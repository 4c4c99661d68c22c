"""The tenants that are reported by name: a bounded number, however many there are.

With a rule for each folder there are as many tenants as folders. The reports about tenants (to Prometheus,
and to the other members) must not grow with that:

1. A tenant with a policy of its own is always reported by name.
2. Of the others, the first `most` that have work are. A tenant without work for `FORGOTTEN_MS` makes room.
3. All other tenants are reported as one, without a name.

So a series begins when a tenant has work, and does not come and go with every poll.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MOST_NAMED = 50
FORGOTTEN_MS = 3_600_000


class LabelLimiter:
    """The tenants that one member reports by name. May be lost."""

    def __init__(self, most: int = MOST_NAMED) -> None:
        self._most = most
        self._always: frozenset[str] = frozenset()
        self._seen_ms: dict[str, int] = {}
        """When each tenant last had work."""

    def see(self, having: Iterable[str | None], always: Collection[str], now_ms: int) -> None:
        """Record the tenants that have work now, and those that have a policy."""
        self._always = frozenset(always)
        self._seen_ms = {
            name: at_ms
            for name, at_ms in self._seen_ms.items()
            if now_ms - at_ms < FORGOTTEN_MS and name not in self._always
        }
        for name in having:
            if name is None or name in self._always:
                continue
            if name in self._seen_ms or len(self._seen_ms) < self._most:
                self._seen_ms[name] = now_ms

    def name(self, tenant: str | None) -> str | None:
        """Return the name under which to report the tenant; `None` for the common one."""
        return tenant if tenant in self._always or tenant in self._seen_ms else None
