"""The merge of sources into output rows (SlateDB format: row semantics of a compaction).

1. A loser tree yields the sources' rows by ascending key, then descending sequence number. Nodes compare the
   eight key bytes after the common prefix as one number; only ties compare more.
2. Rows of one key form a group. Of exact duplicates (key and sequence number) the newer source's row remains.
3. With a merge operator, a merge row at or below the horizon starts a fold. Python collects the operands and
   returns the folded row as the row of an extra source after the real ones.
4. Retention: an expired merge row is dropped; any other expired row becomes a tombstone. A kept row at or
   below the horizon drops all older versions of the key unless it is a merge row.
5. If no older run lies below (`drop_tombstones`), a tombstone is pending until an older version of its key is
   kept; otherwise it is dropped.
6. Kept rows pass the compaction filter, if any, to the block encoder. Rows up to and including the resume
   position were written by an earlier attempt and are skipped.

`run` returns when it needs something, and continues there when called again. `row_taken` means that the
winner's row has passed steps 2 to 6.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lithify.datasets.slatedb.kernel.blocks import append_row
from lithify.datasets.slatedb.kernel.keys import compare_keys
from lithify.datasets.slatedb.kernel.layout import (
    HAS_CREATE,
    HAS_EXPIRE,
    MERGE,
    PENDING_TAIL_BYTES,
    TOMBSTONE,
    Decision,
    KernelStatus,
    Record,
    Records,
)
from lithify.datasets.slatedb.kernel.rows import next_row
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.memory import borrowed, copy_bytes, copy_key, load_i64, store_64, store_u8

Tree = npt.NDArray[np.int64]

_SEQ_BYTES = 8
_TIMESTAMP_BYTES = 8

_OK = int(KernelStatus.OK)
_DONE = int(KernelStatus.DONE)
_FOLD = int(KernelStatus.FOLD)
_FILTER = int(KernelStatus.FILTER)
_NEED_PENDING_SPACE = int(KernelStatus.NEED_PENDING_SPACE)
_BAD_ORDER = int(KernelStatus.BAD_ORDER)
_UNDECIDED = int(Decision.NONE)
_DROP = int(Decision.DROP)
_REPLACE = int(Decision.REPLACE)


# ---------------------------------------------------------------- the loser tree


@inlined
def _precedes_on_tie(sources: Records, left: int, right: int) -> bool:
    """Return whether the left source's row comes first if the compared key bytes are equal."""
    a = sources[left]
    b = sources[right]
    if a.exhausted or b.exhausted:
        return bool(b.exhausted and (left < right or not a.exhausted))
    order = compare_keys(a.key, a.key_len, b.key, b.key_len)
    if order != 0:
        return order < 0
    if a.seq != b.seq:
        return bool(a.seq > b.seq)
    return left < right


@inlined
def _precedes(sources: Records, left: int, right: int) -> bool:
    a = sources[left].prefix
    b = sources[right].prefix
    return bool(a < b or (a == b and _precedes_on_tie(sources, left, right)))


@called
def _build_tree(sources: Records, tree: Tree, count: int) -> None:
    """Play all matches. Leaf i is node `count + i`; `tree[n]` is the loser at node n, `tree[0]` the overall
    winner."""
    winners = np.empty(2 * count, np.int64)
    for index in range(count):
        winners[count + index] = index
    for node in range(count - 1, 0, -1):
        left, right = winners[2 * node], winners[2 * node + 1]
        if _precedes(sources, left, right):
            winners[node], tree[node] = left, right
        else:
            winners[node], tree[node] = right, left
    tree[0] = winners[1]


@inlined
def _replay(sources: Records, tree: Tree, count: int) -> None:
    """Replay the matches of the last winner, whose row has changed."""
    winner = tree[0]
    prefix = sources[winner].prefix
    node = (winner + count) >> 1
    while node > 0:
        other = tree[node]
        other_prefix = sources[other].prefix
        if other_prefix != prefix:
            swaps = np.int64(other_prefix < prefix)
        else:
            swaps = np.int64(_precedes_on_tie(sources, other, winner))
        # The winner is unpredictable, so no branch depends on it.
        exchanged = (winner ^ other) & -swaps
        tree[node] = other ^ exchanged
        winner ^= exchanged
        prefix = min(prefix, other_prefix)
        node >>= 1
    tree[0] = winner


@inlined
def _advance(sources: Records, tree: Tree, merger: Record, codecs: Record) -> int:
    winner = tree[0]
    status = next_row(sources[winner], codecs)
    if status != _OK:
        merger.at_source = winner
        return status
    _replay(sources, tree, merger.source_count)
    return _OK


# ---------------------------------------------------------------- writing kept rows


@called
def _was_written_before(merger: Record, key: int, key_len: int, seq: np.uint64) -> bool:
    order = compare_keys(key, key_len, merger.resume_key, merger.resume_key_len)
    if order == 0:
        return bool(seq >= merger.resume_seq)
    if order > 0:
        merger.resuming = 0
    return False


@called
def _ask_filter(
    merger: Record, key: int, key_len: int, tail: int, value_len: int, tail_len: int, flags: int
) -> int:
    merger.filter_key = key
    merger.filter_key_len = key_len
    merger.filter_value = tail
    merger.filter_value_len = value_len
    merger.filter_tail_len = tail_len
    merger.filter_flags = flags
    return _FILTER


@inlined
def _emit(
    merger: Record,
    output: Record,
    codecs: Record,
    key: int,
    key_len: int,
    seq: np.uint64,
    tail: int,
    value_len: int,
    tail_len: int,
    flags: int,
) -> int:
    """Write a kept row unless an earlier attempt wrote it or the filter drops it."""
    if merger.resuming and _was_written_before(merger, key, key_len, seq):
        merger.rows_in -= 1
        return _OK
    if merger.has_filter:
        if merger.decision == _UNDECIDED:
            return _ask_filter(merger, key, key_len, tail, value_len, tail_len, flags)
        if merger.decision == _DROP:
            merger.decision = _UNDECIDED
            merger.filtered += 1
            return _OK
        if merger.decision == _REPLACE:
            tail = merger.filter_value
            value_len = merger.filter_value_len
            tail_len = merger.filter_tail_len
            flags = merger.filter_flags
    status = append_row(output, codecs, key, key_len, tail, value_len, tail_len, flags)
    if status == _OK:
        merger.decision = _UNDECIDED
        merger.rows_out += 1
    return status


@called
def _emit_pending(merger: Record, pending: Records, output: Record, codecs: Record) -> int:
    while merger.pending_next < merger.pending_count:
        row = pending[merger.pending_next]
        status = _emit(
            merger,
            output,
            codecs,
            merger.group_key,
            merger.group_key_len,
            row.seq,
            merger.pending_tails + PENDING_TAIL_BYTES * merger.pending_next,
            0,
            row.tail_len,
            row.flags,
        )
        if status != _OK:
            return status
        merger.pending_next += 1
    merger.pending_count = 0
    merger.pending_next = 0
    return _OK


# ---------------------------------------------------------------- groups and retention


@inlined
def _count_dropped_tombstone(merger: Record, was_expired: int) -> None:
    if was_expired:
        merger.expired += 1
    else:
        merger.tombstones += 1


@called
def _end_group(merger: Record, pending: Records) -> None:
    """End the group. No older version follows, so pending tombstones are dropped."""
    for index in range(merger.pending_count):
        _count_dropped_tombstone(merger, pending[index].was_expired)
    merger.pending_count = 0
    merger.pending_next = 0
    merger.group_rows = 0


@inlined
def _begin_group(row: Record, merger: Record) -> None:
    copy_key(merger.group_key, row.key, row.key_len)
    merger.group_key_len = row.key_len
    merger.group_prefix = row.prefix
    merger.group_done = 0


@called
def _make_tombstone(row: Record, scratch: int) -> tuple[int, int]:
    """Write the expired row to `scratch` as a tombstone without expiry. Return its length and flags."""
    fixed = row.value + row.value_len
    flags = TOMBSTONE | (row.flags & HAS_CREATE)
    copy_bytes(scratch, fixed, _SEQ_BYTES)
    store_u8(scratch + _SEQ_BYTES, flags)
    length = _SEQ_BYTES + 1
    if flags & HAS_CREATE:
        store_64(scratch + length, load_i64(fixed + length + _TIMESTAMP_BYTES))
        length += _TIMESTAMP_BYTES
    return length, flags


@called
def _defer_tombstone(
    row: Record, merger: Record, pending: Records, tail: int, tail_len: int, flags: int, was_expired: int
) -> int:
    """Make a tombstone of the last run pending until an older version is kept."""
    if row.seq <= merger.horizon:  # no older version will be kept
        _count_dropped_tombstone(merger, was_expired)
        return _OK
    if merger.pending_count >= merger.pending_capacity:
        return _NEED_PENDING_SPACE
    place = pending[merger.pending_count]
    copy_bytes(merger.pending_tails + PENDING_TAIL_BYTES * merger.pending_count, tail, tail_len)
    place.tail_len = tail_len
    place.flags = flags
    place.seq = row.seq
    place.was_expired = was_expired
    merger.pending_count += 1
    return _OK


@inlined
def _retain(row: Record, merger: Record, pending: Records, output: Record, codecs: Record) -> int:
    flags, tail, value_len, tail_len = row.flags, row.value, row.value_len, row.tail_len
    is_merge = flags & MERGE
    was_expired = 0
    if flags & HAS_EXPIRE and row.expire_ms <= merger.clock_tick_ms:
        if is_merge:
            merger.expired += 1
            return _OK
        was_expired = 0 if flags & TOMBSTONE else 1
        tail, value_len = merger.scratch_row, 0
        tail_len, flags = _make_tombstone(row, tail)
    if merger.drop_tombstones and flags & TOMBSTONE:
        status = _defer_tombstone(row, merger, pending, tail, tail_len, flags, was_expired)
    else:
        status = _emit_pending(merger, pending, output, codecs)
        if status == _OK:
            status = _emit(
                merger, output, codecs, row.key, row.key_len, row.seq, tail, value_len, tail_len, flags
            )
    if status == _OK and not is_merge and row.seq <= merger.horizon:
        merger.group_done = 1
    return status


@inlined
def _take_row(
    row: Record, is_folded: int, merger: Record, pending: Records, output: Record, codecs: Record
) -> int:
    """Pass one row through the merge. It was taken only if the status is `OK`."""
    order = 1
    if is_folded or row.prefix <= merger.group_prefix:
        order = compare_keys(row.key, row.key_len, merger.group_key, merger.group_key_len)
    if order < 0:
        return _BAD_ORDER
    if order > 0:
        _end_group(merger, pending)
        _begin_group(row, merger)
    elif merger.group_rows > 0 and row.seq >= merger.group_seq:
        if row.seq > merger.group_seq:
            return _BAD_ORDER
        merger.superseded += 1
        merger.rows_in += 1
        return _OK
    if merger.group_done:
        merger.superseded += 1
    else:
        if row.flags & MERGE and merger.has_operator and not is_folded and row.seq <= merger.horizon:
            return _FOLD
        status = _retain(row, merger, pending, output, codecs)
        if status != _OK:
            return status
    merger.rows_in += 1
    merger.group_rows += 1
    merger.group_seq = row.seq
    return _OK


# ---------------------------------------------------------------- entries


@entry
def prime(sources: Records, tree: Tree, mergers: Records, codecs: Records) -> int:
    """Move every source from `at_source` on to its first row, and build the tree."""
    merger = mergers[0]
    for index in range(merger.at_source, merger.source_count):
        status = next_row(sources[index], codecs[0])
        if status != _OK:
            merger.at_source = index
            return status
    _build_tree(sources, tree, merger.source_count)
    return _OK


@entry
def run(
    sources: Records, tree: Tree, mergers: Records, pending: Records, outputs: Records, codecs: Records
) -> int:
    """Merge until something is needed or everything is done."""
    sources, tree, pending = borrowed(sources), borrowed(tree), borrowed(pending)
    mergers, outputs, codecs = borrowed(mergers), borrowed(outputs), borrowed(codecs)
    merger = mergers[0]
    output = outputs[0]
    codec = codecs[0]
    while True:
        winner = tree[0]
        if not merger.row_taken:
            index = merger.source_count if merger.folded_ready else winner
            source = sources[index]
            if source.exhausted:
                _end_group(merger, pending)
                return _DONE
            status = _take_row(source, merger.folded_ready, merger, pending, output, codec)
            if status != _OK:
                merger.at_source = winner
                return status
            if merger.folded_ready:
                merger.folded_ready = 0
                continue
            merger.row_taken = 1
        status = _advance(sources, tree, merger, codec)
        if status != _OK:
            return status
        merger.row_taken = 0


@entry
def advance(sources: Records, tree: Tree, mergers: Records, codecs: Records) -> int:
    """Skip the winner's row, which Python has used in a fold."""
    return _advance(sources, tree, mergers[0], codecs[0])


@entry
def find_last_row(sources: Records, codecs: Records) -> int:
    """Read the only source to its end. Its record then has the last row's `seq` and `flags`, and the key
    buffer its key, of `last_key_len` bytes."""
    source = borrowed(sources)[0]
    while not source.exhausted:
        status = next_row(source, codecs[0])
        if status != _OK:
            return status
        if not source.exhausted:
            source.last_key_len = source.key_len
    return _DONE
