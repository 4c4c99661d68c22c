"""Compiles or loads all compiled code ahead of the first task, by running it on one small batch."""

from __future__ import annotations

from lithify.datasets.kafka.cleaning.index import index
from lithify.datasets.kafka.cleaning.retention import NO_BOUND, NO_OFFSETS, Rules, reasons
from lithify.datasets.kafka.cleaning.segments import Cleaner
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.format.kernel.ready import KERNEL
from lithify.datasets.kafka.format.kernel.retaining import RemovalReason
from lithify.datasets.kafka.format.legacy import upgraded
from lithify.datasets.kafka.format.record_batches import decode, merged
from lithify.datasets.kafka.format.transactions import fates
from lithify.kernel.cache import all_is_compiled

_BATCH = bytes.fromhex(
    "00000000000000050000004b00000000028aada26f00000000000200000000000003ed00000000000003ef"
    "ffffffffffffffffffffffffffff00000003"
    "1000000002610231000e00020202620100100004040261023300"
)
"""Three records, one of them a tombstone."""


def warm_up() -> None:
    """Compile the kernel or load it from the cache; later calls in the process cost almost nothing."""
    upgraded("warm-up", _BATCH)
    source = decode(_BATCH, "warm-up")
    what, _ = fates(source.batches, ())
    index(source, what, 8)
    rules = Rules(0, 0, keep_unkeyed=False, bound=NO_BOUND)
    keep = reasons(source, what, rules, NO_OFFSETS, NO_OFFSETS) == RemovalReason.STAYS
    merged(source, keep, BatchCodec.NONE, 0)
    list(Cleaner(rules, NO_OFFSETS, NO_OFFSETS).cleaned([(source.name, _BATCH)]))
    all_is_compiled(KERNEL)
