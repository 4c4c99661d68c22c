"""Help: a first screen, options of a kind where they make sense, and nothing that is cut off."""

from __future__ import annotations

import re

import pytest

from tests.cli.invoking import COMMAND, invoke


def help_of(*arguments: str, width: int = 80) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        patched.setattr("typer.rich_utils.MAX_WIDTH", width)
        return invoke(*arguments).output


def listed(text: str) -> list[str]:
    """The names at the beginning of the lines in panels of commands."""
    return re.findall(r"(?m)^│ ([a-z][a-z-]+)  ", text)


def test_the_first_screen_has_seven_commands_and_the_way_to_the_others() -> None:
    first = help_of()
    assert listed(first) == ["demo", "plan", "compact", "run", "status", "web", "doctor"]
    assert "lithify --help lists all commands" in first
    assert len(first.splitlines()) < 40
    everything = help_of("--help")
    assert set(listed(everything)) == set(COMMAND.commands)
    assert "lists all commands" not in everything


@pytest.mark.parametrize("width", [80, 120])
def test_flags_have_no_placeholder_and_names_are_whole(width: int) -> None:
    for name in COMMAND.commands:
        said = help_of(name, "--help", width=width)
        assert "<bool>" not in said, name
        assert not re.search(r"\w…", re.sub(r"(AWS|GOOGLE|AZURE)_…", "", said)), name
    assert "aws_endpoint=http://127.0.0.1:9000" in help_of("compact", "--help")
    folded = re.sub(r"\W", "", help_of("compact", "--help"))
    assert "sorted_run_consolidation_threshold" in folded


def test_options_of_a_kind_are_shown_for_its_urls_only() -> None:
    for _ in range(2):
        both = help_of("compact", "--help")
        assert "Options for SlateDB databases" in both
        assert "Options for keyed logs" in both
        table = help_of("compact", "iceberg://lake/db.events", "--help")
        assert "Options for" not in table
        assert "--segment" not in table
        log = help_of("compact", "--help", "kafka+s3://bucket/orders-0")
        assert "--segment" not in log
        assert "--quiet-period" in log
        assert "--merge-operator" in help_of("run", "/data/db", "iceberg://lake/db.events", "--help")
    assert "--segment" in help_of("compact", "s4://unknown/db", "--help")
