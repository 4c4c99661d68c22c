"""The catalog as JSON. Invalid documents, and those of a later version of Lithify, are refused with a
sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from lithify.base.errors import CorruptObject, Refused, Unsupported
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.fleet.catalog.model import (
    MAX_BACKLOG,
    MAX_BYTES,
    MAX_PER_SLOT,
    MAX_SLOTS,
    MAX_WEIGHT,
    Catalog,
    CatalogTenant,
    Coordinates,
    DatasetRule,
    Queue,
    QueueState,
    checked,
)

FORMAT = 1

EnumT = TypeVar("EnumT", bound=Enum)
PartT = TypeVar("PartT", Queue, DatasetRule, CatalogTenant)

_TOP = ("format", "queues", "default_queue", "rules", "tenants")
_QUEUE = (
    "name",
    "id",
    "largest_bytes",
    "weight",
    "reserved_slots",
    "longest_backlog",
    "largest_share",
    "per_slot",
    "state",
)
_TENANT = ("name", "weight", "most_running")
_RULE = ("pattern", "coordinates", "queue", "tenant", "settings", "take_over_ms")


def as_document(catalog: Catalog) -> dict[str, Any]:
    """Return the catalog as a JSON value."""
    return {
        "format": FORMAT,
        "queues": [queue_document(queue) for queue in catalog.queues],
        "default_queue": catalog.default_queue,
        "rules": [_stored_rule(rule) for rule in catalog.rules],
        "tenants": [tenant_document(tenant) for tenant in catalog.tenants],
    }


def queue_document(queue: Queue) -> dict[str, Any]:
    """Return a queue as a JSON value."""
    return {name: _plain(getattr(queue, name)) for name in _QUEUE}


def rule_document(rule: DatasetRule) -> dict[str, Any]:
    """Return a rule as a JSON value."""
    return {name: _plain(getattr(rule, name)) for name in _RULE}


def _stored_rule(rule: DatasetRule) -> dict[str, Any]:
    """Leave out what earlier versions do not know, unless it is used."""
    document = rule_document(rule)
    if rule.take_over_ms is None:
        del document["take_over_ms"]
    return document


def tenant_document(tenant: CatalogTenant) -> dict[str, Any]:
    """Return a tenant as a JSON value."""
    return {name: getattr(tenant, name) for name in _TENANT}


def encode(catalog: Catalog) -> bytes:
    """Encode the catalog for publishing."""
    return json.dumps(as_document(catalog), indent=1).encode()


def decode(data: bytes, key: str) -> Catalog:
    """Decode a catalog. Raise `CorruptObject` if it is not a valid catalog, and `Unsupported` if a later
    version of Lithify wrote it."""
    try:
        fields = json.loads(data)
        if isinstance(fields, dict) and isinstance(fields.get("format"), int) and fields["format"] > FORMAT:
            raise Unsupported(
                f"{key}: is of format {fields['format']}, which a later version of Lithify wrote"
            )
        _check_fields(fields, _TOP, key)
        return checked(
            [_named("queue", queue, _queue, key) for queue in _list(fields["queues"])],
            text(fields["default_queue"]),
            [_named("rule", rule, _rule, key) for rule in _list(fields["rules"])],
            [_named("tenant", tenant, _tenant, key) for tenant in _list(fields["tenants"])],
        )
    except Unsupported:
        raise
    except (Refused, *UNDECODABLE) as error:
        raise CorruptObject(key, f"is not a catalog of a fleet: {error}") from error


def _named(what: str, fields: Any, read: Callable[[Any, str], PartT], key: str) -> PartT:
    """Decode a part of the catalog. The error names the invalid part."""
    try:
        return read(fields, key)
    except UNDECODABLE as error:
        name = fields.get("name", fields.get("pattern")) if isinstance(fields, dict) else None
        raise ValueError(f"{what} {str(name)[:120]!r}: {error}") from error


def _queue(fields: Any, key: str) -> Queue:
    _check_fields(fields, _QUEUE, key)
    largest = fields["largest_bytes"]
    share = fields["largest_share"]
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise ValueError(f"{share!r} is not a share")
    return Queue(
        name=text(fields["name"]),
        id=text(fields["id"]),
        largest_bytes=None if largest is None else whole_number(largest, least=1, most=MAX_BYTES),
        weight=whole_number(fields["weight"], least=1, most=MAX_WEIGHT),
        reserved_slots=whole_number(fields["reserved_slots"], most=MAX_SLOTS),
        longest_backlog=whole_number(fields["longest_backlog"], least=1, most=MAX_BACKLOG),
        largest_share=float(share),
        per_slot=whole_number(fields.get("per_slot", 1), least=1, most=MAX_PER_SLOT),
        state=_member(QueueState, fields["state"]),
    )


def _rule(fields: Any, key: str) -> DatasetRule:
    _check_fields(fields, _RULE, key)
    if not isinstance(fields["settings"], dict):
        raise ValueError(f"{fields['settings']!r} are not settings")
    asked_ms = fields.get("take_over_ms")
    return DatasetRule(
        pattern=text(fields["pattern"]),
        coordinates=_member(Coordinates, fields["coordinates"]),
        queue=_optional(fields["queue"]),
        tenant=_optional(fields["tenant"]),
        settings=MappingProxyType({text(n): text(v) for n, v in fields["settings"].items()}),
        take_over_ms=None if asked_ms is None else whole_number(asked_ms, most=MAX_BYTES),
    )


def _tenant(fields: Any, key: str) -> CatalogTenant:
    _check_fields(fields, _TENANT, key)
    most = fields["most_running"]
    return CatalogTenant(
        name=text(fields["name"]),
        weight=whole_number(fields["weight"], least=1, most=MAX_WEIGHT),
        most_running=None if most is None else whole_number(most, least=1, most=MAX_SLOTS),
    )


def _check_fields(fields: Any, known: tuple[str, ...], key: str) -> None:
    if not isinstance(fields, dict):
        raise ValueError(f"{str(fields)[:100]!r} has no fields")
    unknown = sorted(fields.keys() - set(known))
    if unknown:
        raise Unsupported(
            f"{key}: has the field {unknown[0]!r}, which this version of Lithify does not know; use "
            "the version that wrote it"
        )


def _member(enum: type[EnumT], value: Any) -> EnumT:
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in enum)
        raise ValueError(f"{value!r} is not one of {known}") from None


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:100]!r} is not a list")
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else text(value)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value
