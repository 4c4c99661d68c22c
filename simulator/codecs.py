"""How manifests and ledgers become bytes in a simulation.

In one seed of `REAL_SHARE` by the real codecs, decoded once for equal bytes. In the others by tokens:
short bytes that stand for a value, which costs a fraction; what the real encoder refuses is refused too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lithify.datasets.slatedb.format.ledger import SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest, manifest_problem
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.model import Ledger

REAL_SHARE = 0.2


class Codecs:
    """The codecs of one run."""

    def __init__(self, *, real: bool) -> None:
        self._is_real = real
        self._values: dict[bytes, Any] = {}
        self._tokens: dict[Any, bytes] = {}

    def encode_manifest(self, manifest: Manifest, mark: bytes = b"") -> bytes:
        if self._is_real:
            return encode_manifest(manifest, mark)
        if problem := manifest_problem(manifest):
            raise ValueError(problem)
        token = self._token(manifest) + mark
        self._values[token] = manifest
        return token

    def decode_manifest(self, data: bytes, name: str = "manifest") -> Manifest:
        value = self._values.get(data)
        if value is None:
            value = self._values[data] = decode_manifest(data, name)
        assert isinstance(value, Manifest)
        return value

    def encode_ledger(self, ledger: SlateLedger) -> bytes:
        return encode_ledger(ledger) if self._is_real else self._token(ledger)

    def decode_ledger(self, data: bytes, name: str = "compactions") -> SlateLedger:
        value = self._values.get(data)
        if value is None:
            value = self._values[data] = decode_ledger(data, name)
        assert isinstance(value, Ledger)
        return replace(value)  # each version is another object, as with the real codec

    def _token(self, value: Any) -> bytes:
        """The bytes that stand for a value: equal values, equal bytes, as with the real codecs."""
        token = self._tokens.get(value)
        if token is None:
            token = self._tokens[value] = b"value %d" % len(self._tokens)
            self._values[token] = value
        return token
