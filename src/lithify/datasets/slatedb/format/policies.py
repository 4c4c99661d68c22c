"""The filters of outputs: by default the same as in the newest input that has any.

A client skips a filter whose name it does not know, and reads the SST without one. The name says whether the
filter has whole keys, and which prefix extractor it uses: `_bf`, `_bf:p=<extractor>`,
`_bf:p=<extractor>:wh=0`.

1. Names: those of the setting, or of the newest input with filters, or the default.
2. Bits per key follow from the number of probes, which two numbers may share: 9 and 10 have the same. The
   default is assumed if it is one of them; otherwise the size of the filter and the number of rows decide, if
   every row has one hash; otherwise the larger is taken.
3. An extractor is code of the client's. A setting says how many bytes its prefixes have. It is checked with
   the first and last keys of the input: a filter with other prefixes would hide rows.

Filters of other kinds cannot be written. Such a compaction is refused before an output is written, unless the
setting for names leaves them out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.slatedb.compaction.sources import Locator
from lithify.datasets.slatedb.compaction.task import (
    DEFAULT_FILTER,
    DEFAULT_FILTER_BITS_PER_KEY,
    BloomPolicy,
    FilterRules,
    SourceSst,
)
from lithify.datasets.slatedb.format.filter import (
    NamedFilter,
    bloom_probes,
    decode_filters,
    key_hash,
    may_contain,
    probes_of,
)
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.format.sst import unseal
from lithify.datasets.slatedb.format.stats import read_stats
from lithify.datasets.slatedb.model import MAX_METADATA_BYTES, FilterFormat, Manifest, layout_problem
from lithify.store.objects import ObjectStore

_log = logging.getLogger("lithify")

MAX_BITS_PER_KEY = 64
"""More bits gain nothing. A damaged or hostile filter must not make outputs huge."""
_NAME = re.compile(rf"{DEFAULT_FILTER}(?::p=(.+?))?(:wh=0)?", re.DOTALL)
_SURE_ROWS = 8
"""With so many rows the size of a filter, which is whole bytes, gives the bits per key."""


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


def stored_filters(part: SourceSst, stored: bytes) -> tuple[NamedFilter, ...]:
    """Return the filters of an input. An unreadable block proves nothing."""
    name = f"{part.key} (filter)"
    try:
        raw = unseal(stored, part.sst.info.compression, name, limit=MAX_METADATA_BYTES)
        return tuple(decode_filters(raw, name))
    except CorruptObject as error:
        _log.warning("%s", error)
        return ()


def filters_like(
    store: ObjectStore, part: SourceSst | None, stored: bytes, rules: FilterRules
) -> tuple[BloomPolicy, ...]:
    """Return the filters of outputs. `part` is the newest input with filters, and `stored` its filter block.
    Raise `Refused` for filters that cannot be written."""
    there = {} if part is None else {one.name: one.data for one in stored_filters(part, stored)}
    names = tuple(dict.fromkeys(rules.names if rules.names is not None else there or (DEFAULT_FILTER,)))
    policies = tuple(_policy(store, part, name, there, rules) for name in names)
    lengths = {policy.prefix_len for policy in policies} - {0}
    if len(lengths) > 1:
        raise Refused(
            f"filters with prefixes of different lengths ({', '.join(map(str, sorted(lengths)))} bytes) "
            "cannot be written together; leave some out with slatedb.filter_policies"
        )
    return policies


def check_filters(store: ObjectStore, paths: DatabasePaths, manifest: Manifest, rules: FilterRules) -> None:
    """Raise `Refused` if the newest SST with filters has some that outputs cannot have."""
    locate = Locator(store, paths, manifest)
    views = sorted((v for tree in manifest.trees() for v in tree.views()), key=lambda v: v.id, reverse=True)
    part = newest_filtered([[SourceSst("", view.sst)] for view in views])
    if part is not None:
        view = next(view for view in views if view.sst is part.sst)
        part = SourceSst(locate(view), view.sst)
        filters_like(store, part, read_stored_filter(store, part), rules)


def policy_of(name: str, prefix_lens: Mapping[str, int]) -> BloomPolicy:
    """Return the filter of that name. Raise `Refused` if it cannot be written."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise Refused(
            f"filters of the policy {name!r} cannot be written; leave this database to a SlateDB compactor "
            "with that policy, or list the filters that outputs shall have in slatedb.filter_policies"
        )
    extractor, whole = match[1], match[2] is None
    if extractor is None:
        return BloomPolicy(name, has_keys=whole)
    if not whole and f"{extractor}:wh=0" in prefix_lens:
        raise Refused(f"the filter {name!r} is ambiguous: remove {extractor + ':wh=0'!r} from its settings")
    if extractor not in prefix_lens:
        raise Refused(
            f"filters of the policy {name!r} cannot be written, because only its clients know the prefixes "
            f"of {extractor!r}; if they are the first N bytes of keys with so many, set "
            f"slatedb.filter_prefixes.{extractor}=N, or leave such filters out with slatedb.filter_policies"
        )
    return BloomPolicy(name, has_keys=whole, prefix_len=prefix_lens[extractor])


def _policy(
    store: ObjectStore,
    part: SourceSst | None,
    name: str,
    there: Mapping[str, bytes],
    rules: FilterRules,
) -> BloomPolicy:
    policy = policy_of(name, rules.prefix_lens)
    data = there.get(name)
    bits_per_key = rules.bits_per_key
    if part is not None and data is not None:
        _check_prefixes(part, policy, data)
        if bits_per_key is None:
            bits_per_key = _bits_per_key(store, part, policy, data)
    if bits_per_key is None:
        bits_per_key = DEFAULT_FILTER_BITS_PER_KEY
    return BloomPolicy(name, bits_per_key, policy.has_keys, policy.prefix_len)


def _bits_per_key(store: ObjectStore, part: SourceSst, policy: BloomPolicy, data: bytes) -> int | None:
    """Return the bits per key of an input's filter; `None` if it is none that a client would write."""
    probes = bloom_probes(data)
    possible = [bits for bits in range(1, MAX_BITS_PER_KEY + 1) if probes_of(bits) == probes]
    if not possible:
        _log.warning("%s (filter): %s probes of %r make no sense", part.key, probes, policy.name)
        return None
    if DEFAULT_FILTER_BITS_PER_KEY in possible:
        return DEFAULT_FILTER_BITS_PER_KEY
    rows = _rows(store, part) if len(possible) > 1 and policy.has_keys and not policy.prefix_len else 0
    exact = 8 * (len(data) - 2) // rows if rows >= _SURE_ROWS else 0
    return exact if exact in possible else possible[-1]


def _rows(store: ObjectStore, part: SourceSst) -> int:
    """Return the number of rows of an SST; 0 if it does not state it."""
    stats = read_stats(store, part.key, part.sst.info)
    return 0 if stats is None else stats.num_puts + stats.num_deletes + stats.num_merges


def _check_prefixes(part: SourceSst, policy: BloomPolicy, data: bytes) -> None:
    """Raise `Refused` if the input's filter lacks prefixes that it would have with this length."""
    length = policy.prefix_len
    ends = (part.sst.info.first_entry or b"", part.sst.info.last_entry or b"")
    for prefix in (key[:length] for key in ends if length and len(key) >= length):
        if bloom_probes(data) is None or not may_contain(data, key_hash(prefix)):
            raise Refused(
                f"{part.key} (filter): the filter {policy.name!r} does not have the prefix {prefix[:64]!r} "
                f"of a key, so its prefixes are not the first {length} bytes of keys; correct "
                "slatedb.filter_prefixes"
            )
