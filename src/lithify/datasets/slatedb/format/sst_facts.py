"""The facts of one SST file, read from the file itself: info, index and statistics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lithify.datasets.slatedb.format.index import decode_index
from lithify.datasets.slatedb.format.sst import read_info, unseal
from lithify.datasets.slatedb.format.stats import decode_stats, max_stats_bytes
from lithify.store.objects import ObjectStore


def inspect_sst(store: ObjectStore, key: str) -> dict[str, Any]:
    """Return name and value of each fact. Raise `CorruptObject` for a file that is no sound SST."""
    info, format_version = read_info(store, key)
    index = decode_index(
        unseal(store.get_range(key, info.index_offset, info.index_len), info.compression, f"{key} (index)"),
        info,
        key,
    )
    facts: dict[str, Any] = {
        "size_bytes": store.head(key).size,
        "format_version": format_version,
        "data_blocks": len(index),
        "data_bytes": info.data_end,
        **asdict(info),
    }
    if info.stats_len:
        stats = decode_stats(
            unseal(
                store.get_range(key, info.stats_offset, info.stats_len),
                info.compression,
                f"{key} (stats)",
                limit=max_stats_bytes(len(index)),
            ),
            key,
        )
        facts |= {
            "puts": stats.num_puts,
            "deletes": stats.num_deletes,
            "merges": stats.num_merges,
            "raw_key_bytes": stats.raw_key_bytes,
            "raw_value_bytes": stats.raw_value_bytes,
        }
    return facts
