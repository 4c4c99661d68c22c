"""Databases of these tests, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.rig import SEGMENTS, Rig, Template, make_template


@pytest.fixture(scope="session")
def plain_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Four L0 SSTs: one compaction."""
    return make_template(tmp_path_factory.mktemp("plain") / "db")


@pytest.fixture(scope="session")
def segmented_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Four L0 SSTs in each of six segments: six compactions, four at a time."""
    return make_template(tmp_path_factory.mktemp("segmented") / "db", SEGMENTS, keys=20)


@pytest.fixture
def rig(plain_template: Template, tmp_path: Path) -> Rig:
    return Rig.of(plain_template, tmp_path)


@pytest.fixture
def segmented(segmented_template: Template, tmp_path: Path) -> Rig:
    return Rig.of(segmented_template, tmp_path)
