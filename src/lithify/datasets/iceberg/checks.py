"""Checks of an Iceberg table. They write nothing.

1. Catalog and table can be read, and nothing about the table (its format, properties or time column) prevents
   a part of maintenance. The parts that are possible are checked in any case.
2. No file is skipped or omitted.
3. Compactions succeed (`compactions`), clocks agree, and old versions do not pile up.
4. History is kept only as long as it is needed (`history_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lithify.base.errors import CorruptObject, LithifyError, StoreError
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance.history_checks import check_history
from lithify.datasets.iceberg.model import TableState
from lithify.datasets.maintenance import PARTS
from lithify.protocol.checks import check_clocks, check_compactions, check_versions, heartbeats
from lithify.protocol.finding import Finding, advice, ok, problem, warning
from lithify.protocol.status import Status
from lithify.views.text import size


def check_table(
    open_table: Callable[[], IcebergDataset], find: Callable[[IcebergDataset], Status], now_ms: int
) -> Iterator[Finding]:
    """Yield all findings about a table. The first reports whether there is a table that can be compacted."""
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
    yield from _check_parts(dataset, state, f"{len(state.files):,} files, {size(size_bytes)}")
    for note in state.notes:
        if note == state.refusal or any(note == left.note for left in state.left_alone):
            continue
        yield warning("limits", note, "check whether this is acceptable; docs/iceberg.md explains why")
    yield from _check_left(state)
    yield from check_compactions(found)
    written = [*heartbeats(ledger), (state.timestamp_ms, "the last committer")]
    yield check_clocks(written, found.store_ms, now_ms)
    versions = {"versions of the ledger": ledgers, "versions of the chunk states": memories}
    yield check_versions(versions, dataset.url, "Lithify's coordinator")
    if found.retained is not None:
        try:
            yield from check_history(dataset, found.retained, now_ms)
        except LithifyError as error:
            yield problem("history", str(error), _what_to_do(error))


def _check_left(state: TableState) -> Iterator[Finding]:
    for left in state.left_alone:
        says = f"{left.note} ({size(left.size_bytes)}, {left.rows:,} rows)"
        if left.is_stuck:
            yield problem(
                "left alone",
                says,
                "run `lithify rewrite-equality-deletes`, and see that a coordinator may do it "
                "(lithify.max-equality-delete-files)",
            )
        else:
            yield warning(
                "left alone", says, "check whether this is acceptable; docs/iceberg.md explains why"
            )


def _check_parts(dataset: IcebergDataset, state: TableState, amount: str) -> Iterator[Finding]:
    """Check whether each part of maintenance is possible. Parts that the table's policy skips are not
    checked."""
    check, left_out = "table", state.policy.left_out
    if not state.refusal:
        yield ok(check, f"it can be compacted: {amount}")
    elif "data" in left_out:
        yield ok(check, f"{amount}, which are not compacted: lithify.skip-parts names data")
    else:
        yield problem(
            check,
            f"its data cannot be compacted: {state.refusal}",
            "make that change, or add data to the table property lithify.skip-parts to do only the other "
            "parts of maintenance",
        )
    for part, why in state.refused.items():
        if part != "data" and part not in left_out and why != state.refusal:
            says = "do that part with another program, or add it to the table property lithify.skip-parts"
            yield warning(part, why, says if part in PARTS else "do that part with another program")


def _what_to_do(error: LithifyError) -> str:
    if isinstance(error, StoreError):
        do = (
            "check the credentials, and that the catalog and the table's storage can be reached from this "
            "machine"
        )
        return advice(error, do)
    if isinstance(error, CorruptObject):
        return (
            "restore that object from a backup; docs/iceberg.md lists what is lost if an object under "
            "_lithify/ is deleted instead"
        )
    return "change the table, its properties or the URL accordingly"
