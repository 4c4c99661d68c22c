"""What every command does around its work: exit codes and documents of errors."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import typer

from lithify.base import errors as tree
from lithify.cli.running import errors


def leaves(cls: type[tree.LithifyError]) -> Iterator[type[tree.LithifyError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from leaves(sub)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("cls", dict.fromkeys(leaves(tree.LithifyError)))
def test_every_error_has_its_exit_code_and_says_what_it_is(
    cls: type[tree.LithifyError], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("some/key", "[is] broken") if issubclass(cls, tree.CorruptObject) else ("[is] broken",)
    with pytest.raises(typer.Exit) as ended, errors(as_json):
        raise cls(*arguments)
    assert ended.value.exit_code == cls.exit_code
    out, err = capsys.readouterr()
    assert err.startswith(f"{cls.__name__}: ")
    assert "[is] broken" in err
    if as_json:
        document = json.loads(out)
        assert (document["error"], "[is] broken" in document["message"]) == (cls.__name__, True)
    else:
        assert out == ""


def test_an_interrupt_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors(False, stopped="Stopped; nothing is lost."):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert "Stopped; nothing is lost." in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
def test_what_nobody_foresaw_is_said_like_any_error(
    as_json: bool, capsys: pytest.CaptureFixture[str], defects: list[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, errors(as_json):
        raise OverflowError("[int] too large")
    assert ended.value.exit_code == tree.Unexpected.exit_code == 1
    out, err = capsys.readouterr()
    assert err.startswith("Unexpected: this command ended with OverflowError")
    assert "[int] too large. This is a defect" in err
    assert "Traceback" not in err
    assert not as_json or json.loads(out)["error"] == "Unexpected"
    assert len(defects) == 1
    assert "Traceback" in defects.pop()


@pytest.mark.parametrize("error", [typer.Exit(3), typer.Abort(), BrokenPipeError(), typer.BadParameter("x")])
def test_what_the_command_line_deals_with_passes(error: Exception) -> None:
    with pytest.raises(type(error)), errors(False):
        raise error
