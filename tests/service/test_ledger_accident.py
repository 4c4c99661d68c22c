"""The ledger of one of three datasets is damaged while a process works on all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.service.accidents import Stage
from tests.service.databases import check_rows, make_database
from tests.service.lakes import Lake
from tests.service.ledger_accident import damage_a_ledger
from tests.service.nodes import nodes_in


@pytest.mark.timeout(600)
def test_a_damaged_ledger_is_told_of_and_the_other_two_are_compacted(tmp_path: Path) -> None:
    path = tmp_path / "db"
    model = make_database(path, keys=6_000, value_bytes=1000)
    other = Path(shutil.copytree(path, tmp_path / "other"))
    with nodes_in(tmp_path / "logs") as nodes:
        stage = Stage(path, nodes, 5, 6_000, max_sst_size=128 * 1024)
        print(damage_a_ledger(stage, other, Lake(tmp_path / "lake"), place=0))
    check_rows(path, model)
    check_rows(other, model)
