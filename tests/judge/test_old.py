"""The kept databases of old clients are what they are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judge.official import open_db
from tests.judge.old import OLD_DATABASES, old_database_content, unpack_old_database
from tests.judge.rows import read_database, read_file, visible_rows


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_old_databases_hold_what_was_written(tmp_path: Path, name: str) -> None:
    folder = unpack_old_database(name, tmp_path / "db")
    latest_manifest = max((folder / "manifest").glob("*.manifest")).read_bytes()
    assert int.from_bytes(latest_manifest[:2], "big") == 1
    versions = {read_file(path).format_version for path in (folder / "compacted").glob("*.sst")}
    assert versions == ({1} if "0.10" in name else {2})
    trees = read_database(folder)
    assert (len(trees[b""].l0), len(trees[b""].runs)) == (3, 1)
    assert visible_rows(trees) == old_database_content()
    with open_db(folder) as database:
        assert dict(database.scan()) == old_database_content()
