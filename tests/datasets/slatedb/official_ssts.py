"""SST files written by the official client, with a bit of everything in them."""

from __future__ import annotations

from pathlib import Path

from tests.judge.client import Delete, Merge, Put, Write, concat, open_db


def varied_rows(count: int) -> list[Write]:
    """Puts with values of many lengths, deletes, merge operands, and a long key."""
    rows: list[Write] = [Put(b"long" + b"x" * 3000, b"value")]
    for n in range(count):
        key = b"key%06d" % (n * 7)
        if n % 11 == 3:
            rows.append(Delete(key))
        elif n % 13 == 5:
            rows.append(Merge(key, b"operand %d" % n))
        else:
            rows.append(Put(key, b"value %d " % n * (n % 9)))
    return rows


def written_sst(
    folder: Path, rows: list[Write], *, codec: str | None = None, block_size: int = 4096
) -> bytes:
    """The one SST the official client writes of these rows."""
    settings = {"compression_codec": codec, "min_filter_keys": 1}
    with open_db(folder, settings=settings, block_size=block_size, merge_operator=concat) as db:
        db.write_batch(rows)
        db.flush()
    (path,) = (folder / "compacted").iterdir()
    return path.read_bytes()
