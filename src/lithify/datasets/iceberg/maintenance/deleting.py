"""What every run keeps to that deletes files of a table, or makes some that could be taken for garbage.

1. *Whole*: nothing is deleted of a table that does not surely know everything that is its own. What is known
   of its lineage is read before the table, so what is published meanwhile is found to be needed.
2. *Share*: of the files that were listed no more than a share goes, unless somebody allowed it: more is a
   sign of a mistake, whatever the proofs say. A few files may go in any case.
3. *Batches*: the table is looked at again before each batch of files.
4. *Age*: no manifest is deleted that may be committed still (`publish.MIN_MANIFEST_AGE_MS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pyiceberg.table import Table

from lithify.base.errors import Refused
from lithify.datasets.iceberg.compaction.support_checks import check_deletable
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.lineage import KnownState, continues

DEFAULT_MAX_PERCENT = 50
"""Of all files that were listed; more than this is not deleted."""
ALWAYS_FEW = 100
"""So many files may be deleted whatever their share."""
BATCH_FILES = 500
"""Files deleted before the table is looked at again."""

ItemT = TypeVar("ItemT")


def whole_table(dataset: IcebergDataset) -> Table:
    """Return the table as it is now. `Refused` for one that is not surely whole, or of a format version that
    was not tested."""
    known = dataset.lineage.read()
    table = dataset.load()
    check_deletable(table.metadata, dataset.url)
    check_whole(table, known, dataset)
    return table


def check_whole(table: Table, known: KnownState | None, dataset: IcebergDataset) -> None:
    """`Refused` unless the table surely knows everything that is its own."""
    mode = table.catalog.properties.get("snapshot-loading-mode", "all")
    if mode.lower() != "all":
        raise Refused(
            f"{dataset.url}: the catalog shows some of the table's snapshots only (snapshot-loading-mode="
            f"{mode}), so nobody can tell what the others need; collect garbage without that property"
        )
    if not continues(known, table):
        raise dataset.lineage.refusal(known, "nothing is deleted")


def check_percent(max_percent: int) -> None:
    """`Refused` when that is no share."""
    if not 0 <= max_percent <= 100:
        raise Refused(f"the largest share to delete is {max_percent} %; it must be from 0 to 100")


def is_too_much(deletable: int, listed: int, max_percent: int) -> bool:
    """Whether so many of the files that were listed are more than may go."""
    return deletable > ALWAYS_FEW and deletable * 100 > listed * max_percent


def batches(files: Iterable[ItemT]) -> Iterator[list[ItemT]]:
    """What is deleted at once; the table is to be looked at again before each."""
    rest = iter(files)
    while batch := list(islice(rest, BATCH_FILES)):
        yield batch
