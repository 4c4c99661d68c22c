"""What is to become of each object of a chunk: as JSON beside what was merged of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lithify.base.errors import CorruptObject
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number

_MOST = (1 << 63) - 1


class ManifestAction(StrEnum):
    """Of an object."""

    STAY = "stay"
    PUT = "put"
    """Something merged takes its name."""
    DELETE = "delete"
    """Nothing of it is left, or what is left lies in something merged."""
    MARKER = "marker"
    """The same, of a marker: what it decides goes first."""
    LEFTOVER = "leftover"
    """All it has lay in an earlier object already."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An object as it was read."""

    base_offset: int
    etag: str
    action: ManifestAction
    last_offset: int = 0
    """Of what is put."""

    @property
    def goes(self) -> bool:
        """Whether it is deleted once what lies before it is as it is to be."""
        return self.action in (ManifestAction.DELETE, ManifestAction.MARKER)


@dataclass(frozen=True, slots=True)
class BucketManifest:
    """All of a chunk, in the order of their offsets."""

    objects: tuple[Planned, ...]

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(
            {"objects": [[one.base_offset, one.etag, one.action, one.last_offset] for one in self.objects]}
        ).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> BucketManifest:
        """What `encode` made; `CorruptObject` for what is none."""
        try:
            found: Mapping[str, list[list[object]]] = json.loads(data)
            return cls(
                tuple(
                    Planned(
                        whole_number(base, most=_MOST),
                        text(etag),
                        ManifestAction(text(action)),
                        whole_number(last, most=_MOST),
                    )
                    for base, etag, action, last in found["objects"]
                )
            )
        except UNDECODABLE as error:
            raise CorruptObject(name, f"does not decode: {error}") from error
