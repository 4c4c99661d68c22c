"""The folders that a pattern names."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from lithify.config.model import Config
from lithify.datasets import discovery
from lithify.datasets.discovery import folders
from lithify.datasets.registry import registered_for
from lithify.fleet.catalog.patterns import canonical, match
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store


def test_folders_of_a_bucket() -> None:
    root = f"memory://{uuid4().hex}"
    store, _ = open_store(root)
    for key in ("t/red/db/x", "t/a b/db/x", "t/50%/y", "t/file", "log-1/x", "log-2/x", "other/x"):
        store.put(key, b"")
    pattern = f"{root}/t/*/db"
    found = folders(pattern, Config(), WaitPolicy())
    # Whether there is a `db` in each shows who opens it.
    assert found == [f"{root}/t/50%25/db", f"{root}/t/a%20b/db", f"{root}/t/red/db"]
    assert all(match(pattern, url) is not None for url in found)
    assert folders(f"{root}/log-*", Config(), WaitPolicy()) == [f"{root}/log-1", f"{root}/log-2"]
    assert folders(f"{root}/t/*/d*", Config(), WaitPolicy()) == [f"{root}/t/a%20b/db", f"{root}/t/red/db"]
    assert folders(f"{root}/none/*", Config(), WaitPolicy()) == []
    assert open_store(found[1])[1] == "t/a b/db"


def test_folders_of_a_level_are_listed_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"memory://{uuid4().hex}"
    store, _ = open_store(root)
    for number in range(8):
        store.put(f"t/{number}/db/x", b"")
    all_there = threading.Barrier(4)

    class Together(type(store)):  # type: ignore[misc]
        def folder(self, key: str) -> Any:
            if key.count("/"):
                all_there.wait(10)
            return super().folder(key)

    monkeypatch.setattr(store, "__class__", Together)
    expected = [f"{root}/t/{number}/db" for number in range(8)]
    assert folders(f"{root}/t/*/*", Config(), WaitPolicy()) == expected


def test_folders_of_a_file_system(tmp_path: Path) -> None:
    for name in ("one/db", "two/db", "two/other"):
        (tmp_path / name).mkdir(parents=True)
    expected = [f"{tmp_path}/one/db", f"{tmp_path}/two/db"]
    for pattern in (f"{tmp_path}/*/db", f"file://{tmp_path}/*/db"):
        found = registered_for(pattern).find(pattern, Config(), WaitPolicy())
        assert sorted(url.removeprefix("file://") for url in found) == expected


NAMES = ("a b", "50%", "%41", "x#y", "caf\u00e9", "[1]", "a+b", "line\nend", "a**b", "don't")


@pytest.mark.parametrize("way", ["path", "file", "of a kind"])
def test_whatever_a_folder_is_called_it_is_found_and_opened(tmp_path: Path, way: str) -> None:
    root = tmp_path / "top %20 #1\u00fc"
    for name in NAMES:
        (root / name / "db").mkdir(parents=True)
    start = {"path": "", "file": "file://", "of a kind": "kafka+file://"}[way]
    pattern = f"{start}{root if way == 'path' else quote(str(root))}/*/db"
    found = registered_for(pattern).find(pattern, Config(), WaitPolicy())
    roots = [open_store(url.removeprefix("kafka+"))[1] for url in found]
    assert sorted(roots) == sorted(f"{root}/{name}/db".lstrip("/") for name in NAMES)
    for url in found:
        assert canonical(url) == url
        assert match(pattern, url) is not None
    assert all(url.startswith("kafka+file:///" if way == "of a kind" else "/") for url in found)


def test_a_key_of_a_bucket_is_found_however_it_is_called() -> None:
    root = f"memory://{uuid4().hex}"
    store, _ = open_store(root)
    names = [name for name in NAMES if "\n" not in name]  # obstore has no such keys
    for name in names:
        store.put(f"top %20/{name}/db/x", b"")
    for pattern in (f"{root}/top %2520/*/db", f"{root}/top%20%2520/*/d*"):
        found = folders(pattern, Config(), WaitPolicy())
        assert sorted(open_store(url)[1] for url in found) == sorted(f"top %20/{n}/db" for n in names)
        assert all(match(pattern, url) is not None and canonical(url) == url for url in found)


def test_a_name_that_is_no_text_is_nobodys(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).mkdir()
    (tmp_path / "db").mkdir()
    assert folders(f"{tmp_path}/*", Config(), WaitPolicy()) == [f"{tmp_path}/db"]


def test_each_folder_is_listed_with_the_options_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, _ = open_store(f"memory://{uuid4().hex}")
    for key in ("t/red/1/x", "t/blue/2/x"):
        memory.put(key, b"")
    opened = []

    def opened_store(url: str, options: dict[str, str], waiting: WaitPolicy) -> tuple[ObjectStore, str]:
        opened.append((url, options["aws_region"]))
        return memory, ""

    monkeypatch.setattr(discovery, "open_store", opened_store)
    options = {"aws_region": "all", "s3://b#aws_region": "bucket", "s3://b/t/red#aws_region": "red"}
    config = Config(store_options=options)
    assert folders("s3://b/t/*/*", config, WaitPolicy()) == ["s3://b/t/blue/2", "s3://b/t/red/1"]
    assert opened == [("s3://b/t", "bucket"), ("s3://b/t/red", "red")]
    opened.clear()
    folders("kafka+s3://b/t/*", config, WaitPolicy())
    assert opened == [("s3://b/t", "bucket")]
