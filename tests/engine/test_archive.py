"""The class archive: made in the background, used when it fits, never in the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lithify.engine import archive
from lithify.engine.archive_builder import LOWEST_PRIORITY
from lithify.engine.java import Java
from tests.engine.waiting import child_environment, spark_archive, wait_until
from tests.making import class_archive, make

pytestmark = pytest.mark.timeout(600)
USE = """
from lithify.engine.session import open_session
session = open_session("local[1]")
print(session.system_property("java.vm.info"))
session.close()
"""


def test_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    one, other = Java(Path("/java"), "17.0.1"), Java(Path("/java"), "17.0.2")
    paths = {
        archive.archive_path(tmp_path, one, Path("/spark"), "4.3.0"),
        archive.archive_path(tmp_path, other, Path("/spark"), "4.3.0"),
        archive.archive_path(tmp_path, one, Path("/other"), "4.3.0"),
        archive.archive_path(tmp_path, one, Path("/spark"), "4.3.1"),
    }
    assert len(paths) == 4


def test_builder_is_not_started_for_an_existing_archive_or_soon_after_an_attempt(tmp_path: Path) -> None:
    path = tmp_path / "spark.jsa"
    path.touch()
    assert archive.build_in_background(path) is None
    path.unlink()
    note = tmp_path / "spark.attempt"
    note.touch()
    assert archive.build_in_background(path) is None


def test_cache_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert archive.build_in_background(tmp_path / "file" / "spark.jsa") is None


def use(cache: Path) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", USE],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=child_environment() | {"LITHIFY_CACHE_DIR": str(cache)},
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout


def builders(path: Path) -> list[int]:
    """The processes that make this archive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if bytes(path) in arguments and archive.BUILDER_MODULE.encode() in arguments:
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with an archive. A first session has begun to have it made, at the lowest priority: on a
    busy machine that can take for ever, so here it is stopped, and that of the other tests is taken, which
    the same builder has made."""
    cache = tmp_path_factory.mktemp("cache")
    use(cache)
    path = next(cache.glob("spark-archives/*.attempt")).with_suffix(".jsa")
    assert not path.exists(), "the session waited for the archive"
    (builder,) = builders(path)
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, builder) == LOWEST_PRIORITY)
    os.killpg(builder, signal.SIGKILL)
    make([class_archive(spark_archive())])
    shutil.copyfile(spark_archive(), path)
    return cache


def test_archive_is_made_after_the_first_session_and_used_by_the_next(built: Path) -> None:
    assert "sharing" in use(built)
    assert len(list(built.glob("spark-archives/*"))) == 2


@pytest.mark.parametrize("damage", [pytest.param("truncated", marks=pytest.mark.whole), "flipped"])
def test_damaged_archive_is_left_out_and_removed(built: Path, tmp_path: Path, damage: str) -> None:
    good = next(built.glob("spark-archives/*.jsa"))
    bad = tmp_path / "spark-archives" / good.name
    bad.parent.mkdir()
    bad.with_suffix(".attempt").touch()
    data = bytearray(good.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 3] ^= 1
    bad.write_bytes(data)
    use(tmp_path)
    assert not bad.exists()
