"""What is wrong with an Iceberg table. Writes nothing.

1. Catalog and table can be read, and nothing about the table keeps it from being compacted: its format, its
   properties, its time column.
2. Nothing of it is left alone or not kept.
3. The compactions are well (`compactions`), clocks agree, and old versions do not pile up.
4. Its history is kept for somebody, and goes (`history_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lithify.compaction.checks import check_clocks, check_compactions, check_versions, heartbeats
from lithify.compaction.finding import Finding, ok, problem, warning
from lithify.compaction.status import Status
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.history_checks import check_history
from lithify.errors import CorruptObject, LithifyError, StoreError
from lithify.views.text import size


def check_table(
    open_table: Callable[[], IcebergDataset], find: Callable[[IcebergDataset], Status], now_ms: int
) -> Iterator[Finding]:
    """Every finding about a table. The first says whether there is one that can be compacted."""
    check = "table"
    try:
        dataset = open_table()
        ledger = dataset.ledger()
        found = find(dataset)
        ledgers, memories = (len(files.ids()) for files in dataset.numbered_files)
    except LithifyError as error:
        yield problem(check, str(error), _what_to_do(error))
        return
    state = found.snapshot
    size_bytes = sum(file.size_bytes for file in state.files)
    yield ok(check, f"it can be compacted: {len(state.files):,} files, {size(size_bytes)}")
    for note in state.notes:
        yield warning("limits", note, "see whether you can live with that; docs/iceberg.md says why it is so")
    yield from check_compactions(found)
    written = [*heartbeats(ledger), (state.timestamp_ms, "who committed last")]
    yield check_clocks(written, found.store_ms, now_ms)
    versions = {"versions of the ledger": ledgers, "versions of the memory of chunks": memories}
    yield check_versions(versions, "Lithify's coordinator")
    if found.retained is not None:
        try:
            yield from check_history(dataset, found.retained, now_ms)
        except LithifyError as error:
            yield problem("history", str(error), _what_to_do(error))


def _what_to_do(error: LithifyError) -> str:
    if isinstance(error, StoreError):
        return "check that the catalog and the table's storage can be reached from here, and the credentials"
    if isinstance(error, CorruptObject):
        return (
            "restore that object from a backup; docs/iceberg.md says what is lost with each object under "
            "_lithify/ that is deleted instead"
        )
    return "change the table, its properties or the URL as it says"
