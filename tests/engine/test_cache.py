"""What is kept between runs: it goes when nobody has used it for long, and never under a user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lithify.base.usercache import KEEP_UNUSED_S, cache_folder, mark_used, remove_unused

NOW_S = 2_000_000_000.0


def make(path: Path, age_s: float) -> Path:
    if path.suffix:
        path.write_bytes(b"kept")
    else:
        path.mkdir()
        (path / "code.nbi").write_bytes(b"kept")
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


def test_only_what_matches_and_was_long_unused_is_removed(tmp_path: Path) -> None:
    old = [make(tmp_path / name, KEEP_UNUSED_S + 1) for name in ("kernel-a", "kernel-b.jsa")]
    left_behind = make(tmp_path / ".removed-1-kernel-c", KEEP_UNUSED_S + 1)
    recent = make(tmp_path / "kernel-d", KEEP_UNUSED_S - 1)
    other = make(tmp_path / "java", 2 * KEEP_UNUSED_S)
    remove_unused(tmp_path, "kernel-*", NOW_S)
    assert not any(path.exists() for path in (*old, left_behind))
    assert sorted(tmp_path.iterdir()) == [other, recent]
    assert (recent / "code.nbi").exists()


def test_what_has_just_been_used_again_is_kept(tmp_path: Path) -> None:
    folder = make(tmp_path / "kernel-a", 2 * KEEP_UNUSED_S)
    mark_used(folder)
    remove_unused(tmp_path, "kernel-*", folder.stat().st_mtime)
    assert folder.exists()


def test_a_user_who_comes_at_that_moment_gets_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "kernel-a", 2 * KEEP_UNUSED_S)
    rename = Path.rename

    def used_just_before(path: Path, target: Path) -> Path:
        os.utime(path, (NOW_S, NOW_S))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", used_just_before)
    remove_unused(tmp_path, "kernel-*", NOW_S)
    assert (folder / "code.nbi").exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_is_missing_or_vanishes_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_unused(tmp_path / "none", "kernel-*", NOW_S)
    mark_used(tmp_path / "none")
    make(tmp_path / "kernel-a", 2 * KEEP_UNUSED_S)

    def gone(path: Path, target: Path) -> Path:
        raise FileNotFoundError(path, target)

    monkeypatch.setattr(Path, "rename", gone)
    remove_unused(tmp_path, "kernel-*", NOW_S)


def test_a_user_without_a_home_has_the_one_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that can be written, whoever writes there finds out."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert cache_folder({}) == Path("/.cache/lithify")
