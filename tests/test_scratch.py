"""Temporary folders: gone with their process, or when the next one is made; and nobody else's ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lithify.base.scratch import MARKER, Scratch, remove_abandoned
from tests.engine.waiting import child_environment

OWNER = """
import sys
from lithify.base.scratch import Scratch
scratch = Scratch()
(scratch.path / "folder").mkdir()
(scratch.path / "folder" / "file").write_text("left behind")
print(scratch.path, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a scratch folder with something in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment() | {"TMPDIR": str(place)},
    )
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert name, "the process has ended"
        yield process, Path(name)
    finally:
        process.kill()
        process.communicate()


def test_it_is_for_its_owner_only_and_gone_when_closed(place: Path) -> None:
    with Scratch() as scratch:
        assert scratch.path.parent == place
        assert scratch.path.stat().st_mode & 0o777 == 0o700
        assert (scratch.path / MARKER).stat().st_mode & 0o777 == 0o600
    scratch.close()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_when_the_next_one_is_made(place: Path) -> None:
    with owner(place) as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (folder / "folder" / "file").exists()
    with Scratch() as scratch:
        assert list(place.iterdir()) == [scratch.path]


def test_what_a_process_has_is_left_alone_while_it_lives(place: Path) -> None:
    with owner(place) as (process, folder):
        process.send_signal(signal.SIGSTOP)  # silent, but alive
        with Scratch():
            assert (folder / "folder" / "file").exists()
        process.send_signal(signal.SIGCONT)
    remove_abandoned(place)
    assert not folder.exists()


def test_what_is_not_provably_ours_is_left_alone(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").touch()
    (elsewhere / MARKER).touch()
    (place / "lithify-backup").mkdir()
    (place / "lithify-backup" / "precious").touch()
    (place / "lithify-link").symlink_to(elsewhere)
    (place / "lithify-half").mkdir()
    (place / "lithify-half" / MARKER).symlink_to(elsewhere / MARKER)
    (place / "lithify-staged").mkdir()
    (place / "lithify-staged" / f"{MARKER}.staged").touch()
    (place / "lithify-file").touch()
    (place / "other").mkdir()
    (place / "other" / MARKER).touch()
    before = sorted(place.rglob("*"))
    remove_abandoned(place)
    assert sorted(place.rglob("*")) == before
    assert sorted(path.name for path in elsewhere.iterdir()) == [MARKER, "precious"]


def test_links_in_an_abandoned_folder_are_removed_and_not_followed(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").touch()
    with owner(place) as (process, folder):
        process.kill()
        process.wait()
    (folder / "link").symlink_to(elsewhere)
    (folder / "folder" / "link").symlink_to(elsewhere)
    remove_abandoned(place)
    assert not folder.exists()
    assert (elsewhere / "precious").exists()


def test_a_removal_that_was_killed_is_finished_by_the_next(place: Path) -> None:
    """The marker goes last."""
    with owner(place) as (process, folder):
        process.kill()
        process.wait()
    (folder / "folder").chmod(0)  # nothing in it can be removed
    remove_abandoned(place)
    if os.getuid():  # to root nothing is forbidden
        assert (folder / MARKER).exists()
        (folder / "folder").chmod(0o700)
        remove_abandoned(place)
    assert not folder.exists()


def test_another_users_folder_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with owner(place) as (process, folder):
        process.kill()
        process.wait()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    remove_abandoned(place)
    assert (folder / "folder" / "file").exists()


def test_a_forked_child_does_not_remove_its_parents_folder(place: Path) -> None:
    with Scratch() as scratch:
        child = os.fork()
        if not child:
            scratch.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert scratch.path.exists()
        assert (scratch.path / MARKER).exists()
