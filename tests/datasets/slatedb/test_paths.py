"""Object names of a database."""

from __future__ import annotations

import pytest

from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format.paths import DatabasePaths, parse_sst_key

ID = Ulid("01M7XX0DYH21RD4ETECS3XV00P")


@pytest.mark.parametrize(("root", "prefix"), [("", ""), ("db", "db/"), ("a/b/db", "a/b/db/")])
def test_names_under_a_root(root: str, prefix: str) -> None:
    paths = DatabasePaths(root)
    assert paths.manifest_folder == f"{prefix}manifest"
    assert paths.compactions_folder == f"{prefix}compactions"
    assert paths.compacted_folder == f"{prefix}compacted"
    assert paths.manifest_boundary == f"{prefix}gc/manifest.boundary"
    assert paths.compactions_boundary == f"{prefix}gc/compactions.boundary"
    assert paths.sst(ID) == f"{prefix}compacted/{ID}.sst"
    assert parse_sst_key(paths.sst(ID)) == ID


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        (f"{ID}.sst", True),
        (f"{ID}.sst.tmp", True),
        (f"{ID}.anything", True),
        (str(ID), True),
        (f"{ID}x.sst", False),
        (f"{ID[:-1]}.sst", False),
        (f"{ID.lower()}.sst", False),
        (f"{'I' * 26}.sst", False),
        (f"8{'Z' * 25}.sst", False),
        (f"7{'Z' * 25}.sst", True),
        (".sst", False),
        ("", False),
        ("00000000000000000001.sst", False),
        (f"{'é' * 26}.sst", False),
    ],
)
def test_only_the_text_before_the_first_dot_counts(name: str, belongs: bool) -> None:
    found = parse_sst_key(f"db/compacted/{name}")
    assert found == (name.split(".")[0] if belongs else None)
