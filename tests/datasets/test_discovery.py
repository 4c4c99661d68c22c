"""The folders that a pattern names."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from lithify.config.model import Config
from lithify.datasets.discovery import folders
from lithify.datasets.registry import registered_for
from lithify.fleet.patterns import match
from lithify.store.urls import open_store
from lithify.store.waiting import Waiting


def test_folders_of_a_bucket() -> None:
    root = f"memory://{uuid4().hex}"
    store, _ = open_store(root)
    for key in ("t/red/db/x", "t/a b/db/x", "t/50%/y", "t/file", "log-1/x", "log-2/x", "other/x"):
        store.put(key, b"")
    pattern = f"{root}/t/*/db"
    found = folders(pattern, Config(), Waiting())
    # Whether there is a `db` in each shows who opens it.
    assert found == [f"{root}/t/50%25/db", f"{root}/t/a%20b/db", f"{root}/t/red/db"]
    assert all(match(pattern, url) is not None for url in found)
    assert folders(f"{root}/log-*", Config(), Waiting()) == [f"{root}/log-1", f"{root}/log-2"]
    assert folders(f"{root}/t/*/d*", Config(), Waiting()) == [f"{root}/t/a%20b/db", f"{root}/t/red/db"]
    assert folders(f"{root}/none/*", Config(), Waiting()) == []
    assert open_store(found[1])[1] == "t/a b/db"


def test_folders_of_a_file_system(tmp_path: Path) -> None:
    for name in ("one/db", "two/db", "two/other"):
        (tmp_path / name).mkdir(parents=True)
    expected = [f"{tmp_path}/one/db", f"{tmp_path}/two/db"]
    for pattern in (f"{tmp_path}/*/db", f"file://{tmp_path}/*/db"):
        found = registered_for(pattern).find(pattern, Config(), Waiting())
        assert sorted(url.removeprefix("file://") for url in found) == expected
