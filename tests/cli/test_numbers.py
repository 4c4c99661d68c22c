"""Every number that can be given to a command: what is none of that kind is refused in a sentence, what is
accepted works, however small or large."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lithify.base.errors import Refused
from lithify.cli.options.settings import load_settings
from lithify.config.durations import MAX_DURATION_MS
from lithify.config.model import section_of
from lithify.datasets.registry import config_type
from tests.cli.invoking import invoke
from tests.fuzz import running
from tests.judge.official import Put, copy_database, open_db

NO_NUMBERS = (
    *("nan", "inf", "-inf", "1e999", "-1", "-0.5", "", "x", "1e3s", "9" * 400, "9" * 5000, "٣x", "0x10"),
)
NO_DURATIONS = (
    *NO_NUMBERS,
    *("nan s", "inf s", "-5s", "5", "1e999s", "9" * 400 + "d", "101y", "40000d", "1s 2"),
)
LONGEST = "36500d"
SETTINGS = config_type()


def numbers(section: Any = SETTINGS, prefix: str = "") -> list[tuple[str, bool]]:
    """The settings that are numbers, and whether each is a duration."""
    found = []
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None:
            found += numbers(inner, f"{prefix}{name}.")
        elif field.annotation in (int, int | None, timedelta):
            found.append((f"{prefix}{name}", field.annotation is timedelta))
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two overlapping flushes."""
    path = tmp_path_factory.mktemp("numbers") / "db"
    with open_db(path) as database:
        for flush in range(4):
            database.write_batch([Put(b"k%d" % n, b"%d" % flush) for n in range(9)])
            database.flush()
    return path


def test_there_are_numbers_of_both_kinds() -> None:
    kinds = [is_duration for _, is_duration in numbers()]
    assert kinds.count(True) > 20
    assert kinds.count(False) > 6


def test_the_longest_duration_is_one_that_threads_can_wait() -> None:
    assert 1.2 * MAX_DURATION_MS / 1000 < threading.TIMEOUT_MAX


@pytest.mark.parametrize(("name", "is_duration"), numbers())
def test_a_setting_that_is_no_number(name: str, is_duration: bool) -> None:
    for text in NO_DURATIONS if is_duration else NO_NUMBERS:
        with pytest.raises(Refused, match=re.escape(name)) as caught:
            load_settings(None, [f"{name}={text}"])
        assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "-1", "9" * 400, "[1]", "true", "5.5", "'nan'"])
def test_a_file_or_an_environment_with_such_numbers(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lithify.toml"
    for name, _ in numbers():
        section, _, key = name.rpartition(".")
        file.write_text((f"[{section}]\n" if section else "") + f"{key} = {text}\n", encoding="utf-8")
        with pytest.raises(Refused):
            load_settings(file, None)
        variable = f"LITHIFY_{name.replace('.', '__').upper()}"
        monkeypatch.setenv(variable, text)
        with pytest.raises(Refused):
            load_settings(None, None)
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_the_ends_of_what_is_accepted_work(
    template: Path, tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with each setting at its end; what is not accepted there is refused before anything runs."""
    monkeypatch.setattr(running, "MAX_WAITS_S", float("inf"))
    for number, (name, is_duration) in enumerate(numbers()):
        path = copy_database(template, tmp_path / f"db{number}")
        small, large = ("0s", LONGEST) if is_duration else ("1", str(1 << 53))
        text = small if end == "smallest" else large
        result = running.run(["run", "--take-over", "--set", f"{name}={text}", str(path)])
        assert result.exit_code in (0, 2), (name, text, result.output)
        assert "defect" not in result.output
        assert result.exit_code == 0 or name.rpartition(".")[2] in result.output, (name, text, result.output)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "-1", "1e300", "x", "3153600001"])
@pytest.mark.parametrize("delete", [[], ["--delete"]])
def test_an_age_that_is_none(template: Path, tmp_path: Path, text: str, delete: list[str]) -> None:
    path = copy_database(template, tmp_path / "db")
    before = sorted(path.rglob("*"))
    result = invoke("gc", *delete, f"--min-age={text}", path)
    assert result.exit_code == 2
    assert "min-age" in result.stderr
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("text", ["2h", "1h 30m", "0", "3600", "1e3", "0.5"])
def test_an_age(template: Path, text: str) -> None:
    assert invoke("gc", f"--min-age={text}", template).exit_code == 0


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_a_time_to_wait_that_is_none(template: Path, text: str) -> None:
    result = invoke("wait", "--timeout", text, template)
    assert result.exit_code == 2
    assert "--timeout" in result.stderr


@pytest.mark.parametrize("text", ["-1", "0", str(1 << 64), "9" * 30, "nan", "1.5"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "manifest", "--id"),
        ("submit", "--run"),
        ("compact", "--block-size"),
        ("compact", "--max-sst-size"),
    ],
    ids=lambda arguments: arguments[-1],
)
def test_whole_numbers(template: Path, tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    path = copy_database(template, tmp_path / "db")
    result = running.run([*arguments[:-1], f"{arguments[-1]}={text}", str(path)])
    assert result.exit_code in (2, 5), result.output
    assert "defect" not in result.output


@pytest.mark.parametrize("master", ["local[99999]", "local[" + "9" * 5000 + "]", "local[2,99999]"])
def test_more_processors_than_any_machine_has(master: str) -> None:
    result = invoke("doctor", "--spark", "--master", master)
    assert result.exit_code == 2, result.output
    assert "more cores or attempts than allowed" in result.stderr
