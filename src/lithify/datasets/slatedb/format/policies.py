"""The filter policies of a database's clients, as the names in its newest SSTs show.

Outputs get the filter of SlateDB's default policy. Clients skip a filter whose name they do not know: with
another policy they would read outputs without any. So such a compaction is refused before an output is
written. The names are in the filter block, which nothing else reads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.slatedb.compaction.task import SourceSst
from lithify.datasets.slatedb.format.filter import BLOOM_NAME, decode_names
from lithify.datasets.slatedb.format.sst import unseal
from lithify.datasets.slatedb.model import MAX_METADATA_BYTES, FilterFormat, layout_problem
from lithify.store.objects import ObjectStore

_log = logging.getLogger("lithify")


def newest_filtered(sources: Sequence[Sequence[SourceSst]]) -> SourceSst | None:
    """Return the newest source SST that has filters with names, or `None`."""
    for part in (part for source in sources for part in source):
        info = part.sst.info
        if info.filter_len and info.filter_format is FilterFormat.COMPOSITE:
            return part
    return None


def read_stored_filter(store: ObjectStore, part: SourceSst) -> bytes:
    """Return the filter block as stored."""
    info = part.sst.info
    if problem := layout_problem(info):
        raise CorruptObject(part.key, problem)
    return store.get_range(part.key, info.filter_offset, info.filter_len)


def check_policies(part: SourceSst, stored: bytes) -> None:
    """Raise `Refused` for filters of a policy that outputs would not have. An unreadable block proves
    nothing, and is made anew."""
    name = f"{part.key} (filter)"
    try:
        names = decode_names(unseal(stored, part.sst.info.compression, name, limit=MAX_METADATA_BYTES), name)
    except CorruptObject as error:
        _log.warning("%s", error)
        return
    others = sorted(set(names) - {BLOOM_NAME})
    if others:
        raise Refused(
            f"{name}: it has filters of the policy {others[0]!r}, which Lithify cannot write, so clients "
            "would read the outputs without filters; leave this database to a SlateDB compactor with that "
            "policy"
        )
