"""Checks of arguments given to the Python API. Each returns the value in one type, or raises `Refused` with
the parameter's name (`what`) and the expected type."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, get_args

from lithify.base.errors import Refused
from lithify.config.durations import milliseconds_of
from lithify.datasets.options import CommandArgs, KindOption
from lithify.datasets.registry import registered_for

_MAX_SHOWN_CHARS = 80
_MAX_NUMBER = 2**63 - 1

ValueT = TypeVar("ValueT")


def optional(check: Callable[[str, Any], ValueT], what: str, given: Any) -> ValueT | None:
    """Return `None` for `None`, else the result of `check`."""
    return None if given is None else check(what, given)


def place(what: str, given: Any) -> str:
    """Return a URL or path as text; `pathlib` paths are accepted."""
    found = text(what, os.fspath(given) if isinstance(given, os.PathLike) else given)
    try:
        if b"\0" not in os.fsencode(found):
            return found
    except UnicodeEncodeError:
        pass
    raise _refused(what, given, "a URL or path")


def places(what: str, given: Any) -> list[str]:
    """Return URLs and paths as a list; a single one may be given alone."""
    return [place(what, one) for one in _several(what, given)]


def text(what: str, given: Any) -> str:
    if not isinstance(given, str):
        raise _refused(what, given, "text")
    return given


def texts(what: str, given: Any) -> list[str]:
    """Return texts as a list; a single text may be given alone."""
    return [text(what, one) for one in _several(what, given)]


def number(what: str, given: Any) -> int:
    """Return a whole number of at most 64 bits, also one of numpy."""
    try:
        found = operator.index(given)
    except TypeError:
        raise _refused(what, given, "a whole number") from None
    if abs(found) > _MAX_NUMBER:
        raise Refused(f"{what}: the number has more than 64 bits")
    return found


def real(what: str, given: Any) -> float:
    """Return a number, which may be infinite but not NaN."""
    try:
        if not isinstance(given, str | bytes) and not math.isnan(found := float(given)):
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise _refused(what, given, "a number")


def natural(what: str, given: Any) -> int:
    """Return a whole number that is 0 or more."""
    if (found := number(what, given)) < 0:
        raise _refused(what, given, "0 or more")
    return found


def time_ms(what: str, given: Any) -> int:
    """Return a `datetime` in milliseconds since 1970. One without a zone is in this machine's zone."""
    if not isinstance(given, datetime):
        raise _refused(what, given, "a datetime")
    try:
        return round(given.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise Refused(f"{what}: {given} is out of range; leave {what} out, or give a later time") from None


def milliseconds(what: str, given: Any) -> int:
    """Return a number of seconds in milliseconds."""
    try:
        return milliseconds_of(given)
    except TypeError:
        raise _refused(what, given, "a number of seconds") from None
    except (ValueError, OverflowError) as error:
        raise Refused(f"{what}: {error}") from None


def mapping(what: str, given: Any) -> Mapping[str, Any]:
    """Return a mapping whose keys are texts, also those of mappings inside."""
    if not isinstance(given, Mapping):
        raise _refused(what, given, "a mapping of names to values")
    for name, value in given.items():
        text(what, name)
        if isinstance(value, Mapping):
            mapping(f"{what}: {name}", value)
    return given


def _several(what: str, given: Any) -> Iterable[Any]:
    if isinstance(given, str | os.PathLike):
        return [given]
    if not isinstance(given, Iterable):
        raise _refused(what, given, "text or a list of texts")
    return given


def _refused(what: str, given: Any, right: str) -> Refused:
    """Return the error. It shows numbers, texts and times, but only the type of anything else, as a
    collection may contain a secret."""
    is_plain = given is None or isinstance(given, str | int | float | datetime)
    try:
        shown = repr(given)[:_MAX_SHOWN_CHARS] if is_plain else f"a {type(given).__name__}"
    except ValueError:  # Python does not show numbers of thousands of digits
        shown = "a very long number"
    return Refused(f"{what}: {shown} is not {right}")


def for_command(url: str, command: str, full: bool, options: Mapping[str, Any]) -> CommandArgs:
    """Return the options given for a command, as the dataset's kind takes them. Raise `Refused` for one that
    the kind does not have, or of a wrong type."""
    registered = registered_for(url)
    known = [o for o in registered.load_options().options if command in o.commands and o.setting is None]
    unknown = options.keys() - {option.name for option in known}
    if unknown:
        has = ", ".join(option.name for option in known) or "none"
        raise Refused(
            f"{', '.join(sorted(unknown))}: not an option of a {registered.noun} here; its options: {has}"
        )
    given = {o.name: _checked(o, options[o.name]) for o in known if options.get(o.name) is not None}
    return CommandArgs(full, given)


def _checked(option: KindOption, given: Any) -> Any:
    """Return an option's value. Raise `Refused` if it has the wrong type."""
    of_one = {"str": text, "int": number}
    several = get_args(option.type)
    check = of_one.get((several or (option.type,))[0].__name__)
    if check is None:
        return given
    if not several:
        return check(option.name, given)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Refused(f"{option.name}: {given!r} is not a list; give a list")
    return [check(option.name, one) for one in given]
