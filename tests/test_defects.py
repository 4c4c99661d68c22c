"""What nobody foresaw comes out of `contained` as one error: it says what, where, and that it is a defect."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lithify.base import concurrency
from lithify.base.defects import contained
from lithify.base.errors import CorruptObject, LithifyError, NoRoom, Unexpected
from lithify.config.durations import parse_duration


class PanicException(BaseException):
    """Named as the one of a library written in Rust."""


def test_it_says_what_was_done_and_where_it_went_wrong(defects: list[str]) -> None:
    with pytest.raises(Unexpected) as caught, contained("reading a duration"):
        parse_duration(None)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith("reading a duration ended with AttributeError in durations.py, line ")
    assert "defect" in text
    assert isinstance(caught.value.__cause__, AttributeError)
    (logged,) = defects
    assert "Traceback" in logged
    defects.clear()


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), PanicException("index out of bounds")]
)
def test_what_counts_as_a_defect(error: BaseException, defects: list[str]) -> None:
    with pytest.raises(Unexpected, match=type(error).__name__), contained("a test"):
        raise error
    defects.clear()


def test_what_would_end_a_thread_in_silence_is_a_defect(defects: list[str]) -> None:
    def leave() -> None:
        with contained("a test"):
            raise SystemExit(3)

    with pytest.raises(Unexpected, match="a test ended with SystemExit"):
        concurrency.background.start(leave)()
    defects.clear()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_defect(number: int) -> None:
    said = r"^a test ended because a disk is full .*'/tmp/x'\): free space"
    with pytest.raises(NoRoom, match=said), contained("a test"):
        raise OSError(number, "no", "/tmp/x")


def test_a_full_temporary_folder_says_so() -> None:
    """As the system tells of it."""
    with pytest.raises(NoRoom, match="No space left on device"), contained("a test"):
        Path("/dev/full").write_bytes(b"x")


def test_a_long_cause_is_cut(defects: list[str]) -> None:
    with pytest.raises(Unexpected) as caught, contained("a test"):
        raise ValueError("x\n" * 100_000)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)
    defects.clear()


@pytest.mark.parametrize(
    "error", [CorruptObject("a", "b"), LithifyError("c"), KeyboardInterrupt(), SystemExit(1)]
)
def test_what_passes_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, contained("a test"):
        raise error
    assert caught.value is error
