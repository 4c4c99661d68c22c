"""Chunk states as bytes: one line of JSON.

    {"format": "lithify.chunks", "version": 1, "policy": "<16 hex digits>", "chunks": [
      [group, bucket, start_us, state, version, count, "<digest in hex>", priority, no_opinion,
       settled], ...]}

Chunks are ascending by key and the last three columns are left out when they are 0 and false, so equal
states give equal bytes. An unknown version is refused: it was written by a newer Lithify, which may
use another meaning.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.planning.timeline.model import ChunkBucket, ChunkKey, Fingerprint
from lithify.planning.timeline.state import ChunkRecord, ChunkState, ChunkStates

FORMAT = "lithify.chunks"
VERSION = 1

_MAX_INTEGER = 1 << 63
_DIGEST = re.compile(r"[0-9a-f]{16}")
_POLICY = re.compile(r"|[0-9a-f]{16}")
_COLUMNS = (7, 10)


def encode(states: ChunkStates) -> bytes:
    chunks = [_row(key, states.records[key]) for key in sorted(states.records)]
    document = {"format": FORMAT, "version": VERSION, "policy": states.policy, "chunks": chunks}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes, name: str) -> ChunkStates:
    """Decode the states from the bytes of the object `name`. Raise `Unsupported` when a newer Lithify wrote
    them, `CorruptObject` when they are invalid."""
    try:
        document = json.loads(data)
    except UNDECODABLE as error:
        raise CorruptObject(name, f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CorruptObject(name, f"does not have the format {FORMAT}")
    version = document.get("version")
    if version != VERSION:
        raise Unsupported(
            f"{name}: chunk states of version {version!r}, but this Lithify reads {VERSION}; upgrade Lithify"
        )
    policy, rows = document.get("policy"), document.get("chunks")
    if not isinstance(policy, str) or not _POLICY.fullmatch(policy) or not isinstance(rows, list):
        raise CorruptObject(name, "has no policy or no chunks")
    records: dict[ChunkKey, ChunkRecord] = {}
    for index, row in enumerate(rows):
        try:
            key, record = _parse(row)
        except ValueError as error:
            raise CorruptObject(name, f"chunk {index}: {error}") from error
        if key in records:
            raise CorruptObject(name, f"chunk {index}: {key} occurs twice")
        records[key] = record
    return ChunkStates(policy, records)


def _row(key: ChunkKey, record: ChunkRecord) -> list[Any]:
    content = record.fingerprint
    row = [
        key.group,
        key.bucket.name,
        key.start_us,
        record.state.value,
        content.version,
        content.count,
        f"{content.digest:016x}",
    ]
    if record.priority or record.no_opinion or record.settled:
        row += [record.priority, record.no_opinion, record.settled]
    return row


def _parse(row: object) -> tuple[ChunkKey, ChunkRecord]:
    if not isinstance(row, list) or len(row) not in _COLUMNS:
        raise ValueError("is not a list of 7 or 10 columns")
    defaults = (0.0, False, False)
    group, bucket, start_us, state, version, count, digest, priority, *flags = [*row, *defaults][:10]
    if text(bucket) not in ChunkBucket.__members__:
        raise ValueError(f"{bucket!r} is not a bucket")
    for number in (start_us, version, count):
        whole_number(number, least=-_MAX_INTEGER, most=_MAX_INTEGER - 1)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"has no digest: {digest!r}")
    if type(priority) not in (int, float) or not 0 <= priority <= 1:
        raise ValueError(f"has no priority: {priority!r}")
    if any(type(flag) is not bool for flag in flags):
        raise ValueError(f"has no flags: {flags!r}")
    key = ChunkKey(text(group), ChunkBucket[bucket], start_us)
    content = Fingerprint(version, count, int(digest, 16))
    return key, ChunkRecord(ChunkState(state), content, float(priority), *flags)
