"""The frame of every command: errors, options of the form KEY=VALUE, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from lithify.base.defects import unexpected
from lithify.base.errors import LithifyError, Refused
from lithify.cli.termination import Terminated, interrupted_by_sigterm
from lithify.observe.secrets import concealed
from lithify.views.consoles import (
    flush_output,
    print_text,
    standard_error,
    standard_output,
    write_document,
)

if TYPE_CHECKING:
    from lithify.views.blocks import Shown

MAX_ERROR_CHARS = 10_000
INTERRUPTED = 130
TERMINATED = 143
"""By the shells' convention: 128 plus the number of the signal."""
GOES_ON = "Stopped. Finished work is recorded; the next run continues from there."
_PASSED = (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError)
"""Exceptions that the command line handles itself."""


def pairs(options: list[str] | None) -> dict[str, str]:
    """Return options of the form KEY=VALUE as a mapping."""
    found = {}
    for option in options or ():
        name, separator, value = option.partition("=")
        if not separator or not name:
            # Only the first word: the rest may be a secret.
            raise Refused(f"{(option.split() or [option])[0]!r} is not of the form KEY=VALUE")
        found[name] = value
    return found


def print_json(document: Any) -> None:
    write_document(json.dumps(document, indent=2))


def print_shown(shown: Shown, as_json: bool, most: int | None = None) -> None:
    """Print a command's output, for programs or for people; for people at most `most` lines of one kind."""
    if as_json:
        print_json(shown.document)
        return
    from lithify.views.drawing import draw
    from lithify.views.text import MAX_SHOWN

    draw(standard_output(), shown.blocks, MAX_SHOWN if most is None else most)


@contextmanager
def errors(as_json: bool, *, stopped: str = "Stopped.") -> Iterator[None]:
    """Report errors, also unexpected ones, as one sentence on stderr (or a JSON document) and an exit code.
    On an interrupt or SIGTERM, the message is `stopped`."""
    try:
        with interrupted_by_sigterm():
            yield
    except LithifyError as error:
        _fail(error, as_json)
    except _PASSED:
        raise
    except Exception as error:
        _fail(unexpected("this command", error), as_json)
    except KeyboardInterrupt as interrupt:
        if as_json:
            print_json({"error": "Interrupted", "message": stopped})
        standard_error().print(stopped)
        raise typer.Exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED) from None


def print_error(kind: str, text: str, as_json: bool) -> None:
    """Print an error as a document if JSON is wanted, and flush standard output."""
    if as_json:
        with suppress(OSError):  # it may be the reported error itself
            print_json({"error": kind, "message": text})
    flush_output()


def _fail(error: LithifyError, as_json: bool) -> NoReturn:
    text = concealed(str(error))[:MAX_ERROR_CHARS]  # a damaged object can hold very long keys
    print_error(type(error).__name__, text, as_json)
    print_text(standard_error(), text, lead=f"{type(error).__name__}: ", style="red")
    raise typer.Exit(error.exit_code) from error
