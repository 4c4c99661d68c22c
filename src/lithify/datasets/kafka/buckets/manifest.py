"""The planned action for each object of a chunk, as JSON in the folder of the chunk's merged objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lithify.base.errors import CorruptObject
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number

_MOST = (1 << 63) - 1


class ManifestAction(StrEnum):
    """The planned action for an object."""

    STAY = "stay"
    PUT = "put"
    """A merged object replaces it under its name."""
    DELETE = "delete"
    """Nothing of it is kept, or a merged object has the kept records."""
    MARKER = "marker"
    """`DELETE` for a transaction marker, after the data that it decides."""
    LEFTOVER = "leftover"
    """Delete it before anything is put: an earlier object has all its records."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An object as it was read, with its action."""

    base_offset: int
    etag: str
    action: ManifestAction
    last_offset: int = 0
    """Last offset of the merged object, if one is put."""

    @property
    def goes(self) -> bool:
        """Whether the object is deleted once the objects before it are final."""
        return self.action in (ManifestAction.DELETE, ManifestAction.MARKER)


@dataclass(frozen=True, slots=True)
class BucketManifest:
    """All objects of a chunk, in the order of their offsets."""

    objects: tuple[Planned, ...]

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps(
            {"objects": [[one.base_offset, one.etag, one.action, one.last_offset] for one in self.objects]}
        ).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> BucketManifest:
        """Decode a manifest. Raise `CorruptObject` if that fails."""
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
