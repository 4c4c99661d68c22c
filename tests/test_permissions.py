"""Whether other users can change what lies at a path. Another user is a number, which needs root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.base.permissions import check_contents, make_private, why_unsafe

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A folder that all can enter: `tmp_path` itself is closed to others, so that nothing below matters."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


def made(path: Path, mode: int, owner: int | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (0o755, None),
        (0o700, None),
        (0o775, "can be written by other users (mode 0775)"),
        (0o757, "can be written by other users (mode 0757)"),
        (0o777, "can be written by other users (mode 0777)"),
        (0o1777, "can be written by other users (mode 1777)"),
    ],
)
def test_who_may_write_there(base: Path, mode: int, says: str | None) -> None:
    folder = made(base / "cache", mode)
    found = why_unsafe(folder)
    assert (found or "").removeprefix(f"{folder} ") == (says or "")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_folder_above_that_others_can_write(base: Path, mode: int) -> None:
    """They could put another one in the place of what is in it."""
    made(base / "shared", mode)
    folder = made(base / "shared" / "cache", 0o700)
    assert why_unsafe(folder) == f"{base}/shared can be written by other users (mode {mode:04o})"
    assert why_unsafe(base / "shared" / "nothing" / "here")


def test_a_sticky_folder_above_lets_others_add_only(base: Path) -> None:
    made(base / "shared", 0o1777)
    assert why_unsafe(made(base / "shared" / "cache", 0o700)) is None
    assert why_unsafe(base / "shared", may_be_shared=True) is None


@needs_root
def test_what_belongs_to_somebody_else(base: Path) -> None:
    made(base / "shared", 0o1777)
    theirs = made(base / "shared" / "cache", 0o755, STRANGER)
    assert why_unsafe(theirs) == f"{theirs} belongs to another user (number {STRANGER})"
    assert why_unsafe(theirs / "below") == why_unsafe(theirs)
    file = base / "file"
    file.touch()
    os.chown(file, STRANGER, STRANGER)
    assert why_unsafe(file) == f"{file} belongs to another user (number {STRANGER})"


def test_a_symbolic_link_is_followed(base: Path) -> None:
    made(base / "open", 0o777)
    (base / "link").symlink_to(made(base / "open" / "cache", 0o700))
    assert why_unsafe(base / "link") == f"{base}/open can be written by other users (mode 0777)"
    (base / "fine").symlink_to(made(base / "closed", 0o700))
    assert why_unsafe(base / "fine") is None


def test_below_a_folder_that_nobody_else_can_enter_nothing_matters(base: Path) -> None:
    made(base / "own", 0o700)
    assert why_unsafe(made(base / "own" / "cache", 0o777)) is None


def test_what_is_missing_is_made_for_this_user_alone(base: Path) -> None:
    before = os.umask(0)
    try:
        made_there = make_private(base / "one" / "two")
    finally:
        os.umask(before)
    assert made_there.stat().st_mode & 0o777 == 0o700
    assert made_there.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(PermissionError, match="can be written by other users"):
        make_private(made(base / "open", 0o777) / "below")
    assert not (base / "open" / "below").exists()


@needs_root
def test_a_file_of_somebody_else_is_found_wherever_it_lies(base: Path) -> None:
    folder = made(base / "own", 0o700)
    (folder / "deep").mkdir()
    file = folder / "deep" / "index.nbi"
    file.touch()
    check_contents(folder)
    os.chown(file, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=r"index\.nbi belongs to another user"):
        check_contents(folder)
