"""The SlateDB client that writes a database, as its manifest shows (pure). Lithify needs 0.16 or later.

| a client   | writes                          | together with Lithify, or after a compaction        |
|------------|---------------------------------|-----------------------------------------------------|
| up to 0.11 | manifest 1, filters of format 0 | cannot open the database any more                   |
| 0.12       | manifest 1, filters of format 0 | misreads filters of format 1: `get` misses keys     |
| up to 0.14 | manifest 1                      | brings compacted L0 SSTs back, until it stalls      |
| 0.15       | manifest 1                      | drops the marker that says which L0s were compacted |
| from 0.16  | manifest 2                      | works                                               |

Each version of the manifest is written as a whole, also when a database is opened. So its format shows which
client wrote it last. The format of the newest L0 SST shows which client flushed last, even if a newer client,
or Lithify, has written the manifest since. A client that only reads leaves no evidence.
"""

from __future__ import annotations

from lithify.datasets.slatedb.model import FilterFormat, Manifest

OLDEST_MANIFEST = 2
"""The format that SlateDB writes from 0.16 on."""


def why_too_old(manifest: Manifest) -> str | None:
    """Return why a client that Lithify would harm may be active, and what to do, or `None` if there is no
    evidence of one."""
    newest = max(
        (tree.l0[0].sst for tree in manifest.trees() if tree.l0), key=lambda sst: sst.id, default=None
    )
    if manifest.format_version < OLDEST_MANIFEST:
        evidence = f"its manifest has format {manifest.format_version}, which SlateDB wrote before 0.16"
    elif newest is not None and newest.info.filter_format is FilterFormat.LEGACY:
        evidence = f"its newest L0 SST {newest.id} was written by SlateDB 0.12 or older"
    else:
        return None
    return (
        f"{evidence}: such a client would miss keys or stall if Lithify compacts; end all such clients, "
        "including readers, then open the database with SlateDB 0.16 or later, write and flush"
    )
