"""Rules for every run that deletes a table's files.

1. *Whole table*: the table must surely know all that it owns. The known lineage is read before the table, so
   files published in between are found to be needed.
2. *Share*: at most a share of the listed files is deleted, unless the operator allows more: a larger share
   indicates a mistake, whatever the proofs say. A few files may always be deleted.
3. *Batches*: the table is loaded again before each batch.
4. *Age*: a manifest that may still be committed is not deleted (`publish.MIN_MANIFEST_AGE_MS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.datasets.iceberg.compaction.support_checks import check_deletable
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.lineage import KnownState, continues
from lithify.store.times import store_now_ms

DEFAULT_MAX_PERCENT = 50
"""The maximum share of the listed files that is deleted."""
ALWAYS_FEW = 100
"""This many files may be deleted whatever their share."""
BATCH_FILES = 500
"""Files deleted before the table is loaded again."""

ItemT = TypeVar("ItemT")


def whole_table(dataset: IcebergDataset) -> Table:
    """Load the table. Raise `Refused` if it may not be whole, or if its format version was not tested."""
    known = dataset.lineage.read()
    table = dataset.load()
    check_deletable(table.metadata, dataset.url)
    check_whole(table, known, dataset)
    return table


def check_whole(table: Table, known: KnownState | None, dataset: IcebergDataset) -> None:
    """Raise `Refused` unless the catalog shows all snapshots and the table continues its known lineage."""
    mode = table.catalog.properties.get("snapshot-loading-mode", "all")
    if mode.lower() != "all":
        raise Refused(
            f"{dataset.url}: the catalog returns only some of the table's snapshots "
            f"(snapshot-loading-mode={mode}), so it is unknown which files the others need; collect garbage "
            "without that property"
        )
    if not continues(known, table):
        raise dataset.lineage.refusal(known, "nothing is deleted")


def deletion_now_ms(dataset: IcebergDataset, table: Table, clock: Clock, *, dry_run: bool) -> int:
    """Return the time from which the age of files counts: the store's, or this machine's in a dry run, which
    writes nothing.

    Asking the store for its time writes an object. Therefore a table that must not be changed is refused
    before it."""
    check_deletable(table.metadata, dataset.url)
    return clock.now_ms() if dry_run else store_now_ms(dataset.store, dataset.time_key)


def check_percent(max_percent: int) -> None:
    """Raise `Refused` if the value is no percentage."""
    if not 0 <= max_percent <= 100:
        raise Refused(f"the largest share to delete is {max_percent} %; it must be from 0 to 100")


def is_too_much(deletable: int, listed: int, max_percent: int) -> bool:
    """Return whether the share of deletable files exceeds the limit."""
    return deletable > ALWAYS_FEW and deletable * 100 > listed * max_percent


def batches(files: Iterable[ItemT]) -> Iterator[list[ItemT]]:
    """Yield files in batches; the caller loads the table again before it deletes each."""
    rest = iter(files)
    while batch := list(islice(rest, BATCH_FILES)):
        yield batch
