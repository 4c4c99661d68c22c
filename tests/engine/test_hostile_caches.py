"""Caches in which other users can write: what lies there is code, and is neither loaded nor started."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.base.errors import EngineError, Refused
from lithify.base.scratch import Scratch
from lithify.doctor import setup
from lithify.engine import archive
from lithify.engine.java import Java, find_java
from lithify.kernel.fingerprint import is_compiled
from lithify.protocol.finding import Severity

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
BECOME = """
import os, shutil, tempfile
import numba, lithify.kernel.fingerprint, lithify.base.scratch
lithify.kernel.fingerprint.fingerprint()  # where this Python is installed others may not come
numba.njit(lambda number: number + 1)(1)
os.setegid({user})
os.seteuid({user})
"""
USE_KERNEL = """
from lithify.kernel.crc32 import checksum
from lithify.kernel.buffers import bytes_of
assert checksum(bytes_of(b"123456789").ctypes.data, 9, 2) == 0xCBF43926
print(len(checksum.stats.cache_hits) if checksum._cache.cache_path else -1)
"""


class Trap:
    """Unpickled, it leaves a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that all users can enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


def use_kernel(cache: Path, user: int | None = None) -> tuple[int, str]:
    """How often a fresh process found machine code in the cache, -1 without a cache; and what it said."""
    code = USE_KERNEL if user is None else BECOME.format(user=user) + USE_KERNEL
    environment = os.environ | {"LITHIFY_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


def set_traps(cache: Path, mark: Path) -> None:
    """In every index of compiled code, as anybody could who may write there."""
    indexes = list(cache.rglob("*.nbi"))
    assert indexes
    for index in indexes:
        index.write_bytes(pickle.dumps(Trap(mark)) * 2)


def test_machine_code_in_a_folder_that_others_can_write_is_not_loaded(base: Path) -> None:
    cache, mark = base / "cache", base / "mark"
    assert use_kernel(cache)[0] == 0
    set_traps(cache, mark)
    for folder in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
        folder.chmod(0o777)
    hits, said = use_kernel(cache)
    assert hits == -1, "compiled in memory"
    assert not mark.exists()
    assert f"{cache} can be written by other users (mode 0777)" in said
    assert not is_compiled({"LITHIFY_CACHE_DIR": str(cache)}, "slatedb")


@needs_root
def test_a_file_of_another_user_in_it_is_not_loaded(base: Path) -> None:
    cache, mark = base / "cache", base / "mark"
    assert use_kernel(cache)[0] == 0
    set_traps(cache, mark)
    index = next(cache.rglob("*.nbi"))
    os.chown(index, STRANGER, STRANGER)
    hits, said = use_kernel(cache)
    assert hits == -1
    assert not mark.exists()
    assert f"{index} belongs to another user" in said


@needs_root
def test_what_root_has_compiled_is_used_by_all_and_changed_by_none(base: Path) -> None:
    """As the image of a container has it, and a machine of a cluster."""
    cache = base / "cache"
    assert use_kernel(cache)[0] == 0
    subprocess.run(["chmod", "-R", "a+rX,go-w", str(cache)], check=True)
    cache.chmod(0o1777)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert use_kernel(cache, STRANGER) == (1, "")
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()} == before


@needs_root
def test_a_shared_folder_that_somebody_else_has_filled_before_is_not_loaded(base: Path) -> None:
    """The name of the folder of compiled code can be foreseen."""
    cache, mark = base / "cache", base / "mark"
    assert use_kernel(cache)[0] == 0
    set_traps(cache, mark)
    subprocess.run(["chown", "-R", f"{STRANGER}:{STRANGER}", *map(str, cache.iterdir())], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(cache)], check=True)
    cache.chmod(0o1777)
    hits, said = use_kernel(cache)
    assert hits == -1
    assert not mark.exists()
    assert "belongs to another user" in said


def test_an_archive_that_others_could_have_written_is_none(base: Path) -> None:
    folder = base / "spark-archives"
    folder.mkdir()
    path = folder / "spark.jsa"
    path.touch()
    assert archive.existing(path) == path
    folder.chmod(0o777)
    assert archive.existing(path) is None
    folder.chmod(0o755)
    path.chmod(0o666)
    assert archive.existing(path) is None


def test_no_archive_is_made_where_others_can_write(base: Path) -> None:
    folder = base / "spark-archives"
    folder.mkdir()
    folder.chmod(0o777)
    assert archive.build_in_background(folder / "spark.jsa") is None
    assert list(folder.iterdir()) == []


def test_a_script_for_java_is_not_started_where_others_can_write(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = Java(Path("/java"), "17.0.1", frozenset())
    monkeypatch.setattr("lithify.engine.java.choose", lambda *_: java)
    _, home = find_java({}, base / "cache")
    assert (home / "bin" / "java").is_file()
    (home / "bin").chmod(0o777)
    (base / "cache").chmod(0o755)
    for folder in home.parents[:2]:
        folder.chmod(0o755)
    home.chmod(0o755)
    with pytest.raises(EngineError, match="can be written by other users"):
        find_java({}, base / "cache")


def test_no_scratch_folder_is_made_where_others_could_replace_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    with Scratch() as scratch:
        assert scratch.path.parent == base
    base.chmod(0o1777)
    with Scratch() as scratch:
        assert scratch.path.parent == base
    base.chmod(0o777)
    with pytest.raises(Refused, match=r"can be written by other users.*TMPDIR"):
        Scratch()
    assert list(base.iterdir()) == []


def test_doctor_says_it(base: Path) -> None:
    (base / "cache").mkdir()
    environ = {"LITHIFY_CACHE_DIR": str(base / "cache")}
    assert setup.check_cache(environ).severity is Severity.OK
    (base / "cache").chmod(0o1777)
    assert setup.check_cache(environ).severity is Severity.OK
    (base / "cache").chmod(0o777)
    found = setup.check_cache(environ)
    assert found.severity is Severity.PROBLEM
    assert "cannot be used" in found.says
    assert "can be written by other users" in found.says
