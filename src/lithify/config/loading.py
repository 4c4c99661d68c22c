"""Loading of settings from a TOML file, the environment and the command line.

1. Each source is a nested mapping. Later sources override earlier ones, key by key: defaults, the TOML file,
   environment variables (`LITHIFY_SECTION__NAME`, two underscores between levels), options of the command.
   Variables are case-insensitive, except for the keys of tables that users fill, such as `spark.conf`: these
   are taken literally, unless all their letters are capital.
2. The merged settings are validated once. Unknown keys are refused with the nearest known name, invalid
   values with their source, and variables `LITHIFY_…` that match no setting too. All errors are reported
   together.
3. The origin of each effective value is kept, for display.
4. Former names of settings are accepted, with a warning. So is the settings file of SlateDB, in TOML or JSON:
   its settings that have no counterpart are skipped and named.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lithify.base.errors import Refused
from lithify.base.redaction import is_secret, shown
from lithify.base.usercache import CACHE_VARIABLE
from lithify.config.model import (
    ENV_DELIMITER,
    ENV_PREFIX,
    Config,
    options,
    own_sections,
    plain,
    section_of,
)
from lithify.config.renamed import FormerNames, leaves, put
from lithify.config.sections import MILLISECONDS

FILE_VARIABLE = "LITHIFY_CONFIG"
MAX_SHOWN = 20
"""The maximum number of errors that are reported."""
_NO_SETTINGS = (FILE_VARIABLE, CACHE_VARIABLE, "LITHIFY_PRELOAD")
"""Lithify's variables that are not settings. The last one is for the daemon of Spark's Python workers."""
_SERVICE_LINK = re.compile(r"_SERVICE_HOST\Z|_SERVICE_PORT(_\w+)?\Z|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?\Z")
_LINK = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Setting:
    """An effective value."""

    path: tuple[str, ...]
    """Its sections, then its own name."""
    value: object
    """The value as written in a TOML file; secrets are masked."""
    origin: str
    """`default`, or the file, environment variable or option that set it."""

    @property
    def name(self) -> str:
        """The path, separated by dots."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with the origins of their values."""

    config: Config
    origins: Mapping[str, str]
    """The origin of each value that is not a default, by dotted name."""
    warnings: tuple[str, ...] = ()
    """Warnings about former names."""

    def settings(self) -> tuple[Setting, ...]:
        """Return all settings, in the order of the sections."""
        return tuple(
            Setting(path, shown(path[-1], plain(value)), self.origins.get(".".join(path), "default"))
            for path, value in _leaves(self.config)
        )

    def secrets(self) -> frozenset[str]:
        """Return the values of secret settings."""
        leaves = _leaves(self.config)
        return frozenset(value for path, value in leaves if isinstance(value, str) and is_secret(path[-1]))


def load(
    file: Path | None = None,
    flags: Mapping[str, tuple[str, object]] | None = None,
    model: type[Config] = Config,
) -> Loaded:
    """Load the effective settings. `file` defaults to the one that `LITHIFY_CONFIG` names; `flags` maps the
    dotted names of settings to the option that set them and its value. Raise `Refused` with all errors and
    their sources."""
    if file is None and os.environ.get(FILE_VARIABLE):
        file = Path(os.environ[FILE_VARIABLE])
    former = FormerNames(own_sections(model))
    sources: list[tuple[Mapping[str, Any], Callable[[str], str]]] = []
    wrong: list[str] = []
    warnings: list[str] = []
    if file is not None:
        with _noted(wrong):
            read, skipped = former.adopt(_read(file), partial(_is_setting, model), model.model_fields)
            sources.append((read, lambda _name: str(file)))
            if skipped:
                warnings.append(
                    f"{file}: settings that have no meaning here are skipped: {', '.join(skipped)}"
                )
    misnamed = dict(_wrong_variables(os.environ, model, former))
    wrong += misnamed.values()
    said, variables = _environment(model, former, misnamed.keys())
    sources.append((said, variables.__getitem__))
    for name, (flag, value) in (flags or {}).items():
        path = tuple(name.split(".")) if name.partition(".")[0] in former.tops else _path(name, model)
        sources.append((_nest(path, value), partial(_named, flag)))
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, origin in sources:
        given: dict[str, Any] = {}
        formerly: dict[str, str] = {}
        with _noted(wrong):
            given, formerly = former.translate(source)
        _merge(merged, given, origins, partial(_origin, origin, formerly))
        warnings += [f"{origin(old)}: the setting {old} is now {new}" for new, old in formerly.items()]
    config = None
    try:
        config = model(**merged)
    except ValidationError as error:
        wrong += _explained(error, origins, model)
    if config is None or wrong:
        raise Refused(_together(wrong))
    return Loaded(config, origins, tuple(warnings))


def overlaid(config: Config, flags: Mapping[str, tuple[str, object]]) -> Config:
    """Return `config` with some settings changed. `flags` is as in `load`. Raise `Refused` as `load` does."""
    model = type(config)
    merged: dict[str, Any] = config.model_dump()
    origins: dict[str, str] = {}
    for name, (flag, value) in flags.items():
        _merge(merged, _nest(_path(name, model), value), origins, partial(_named, flag))
    try:
        return model(**merged)
    except ValidationError as error:
        raise Refused(_together([*_explained(error, origins, model)])) from None


@contextmanager
def _noted(wrong: list[str]) -> Iterator[None]:
    """Collect refusals raised in the block, to be reported together."""
    try:
        yield
    except Refused as error:
        wrong.append(str(error))


def _together(wrong: list[str]) -> str:
    if len(wrong) == 1:
        return wrong[0]
    more = [f"and {len(wrong) - MAX_SHOWN} more"] if len(wrong) > MAX_SHOWN else []
    return "\n- ".join([f"{len(wrong)} errors in the settings:", *wrong[:MAX_SHOWN], *more])


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text) if file.suffix != ".json" else _table_of(json.loads(text))
    except OSError as error:
        raise Refused(f"the configuration file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        raise Refused(f"the configuration file {file} is not {kind}: {error}") from error


def _table_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def _is_setting(model: type[Config], name: str) -> bool:
    """Return whether a setting, or an entry of a table that users fill, has this dotted name."""
    plain = name.removesuffix(MILLISECONDS)
    return any(f"{plain}.".startswith(f"{option.name}.") for option in options(model))


def _environment(
    model: type[Config], former: FormerNames, misnamed: Collection[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values from environment variables, without the `misnamed` ones, and the variable of each
    value by dotted name. The variable of one setting overrides that of the table around it."""
    said: dict[str, Any] = {}
    variables: dict[str, str] = {}
    tables = _tables(model)
    for variable, value in sorted(os.environ.items(), key=lambda item: -item[0].count(ENV_DELIMITER)):
        path = () if variable in misnamed else _path_of_variable(variable, model, former)
        if not path:
            continue
        is_table = path[0] in former.tops or ".".join(path) in tables
        given = _nest(path, _table_or_text(value) if is_table else value)
        for leaf, inner in leaves(given, with_empty=True):
            if put(said, leaf, inner):
                variables[".".join(leaf)] = variable
            elif (other := variables.get(".".join(leaf), "")).upper() == variable.upper():
                raise Refused(f"the environment variables {other} and {variable} are the same; give only one")
    return said, variables


def _path_of_variable(variable: str, model: type[Config], former: FormerNames) -> tuple[str, ...]:
    """Return the keys of the setting that a variable sets; empty if it is not a setting."""
    if not variable.upper().startswith(ENV_PREFIX):
        return ()
    name = variable[len(ENV_PREFIX) :]
    section = name.partition(ENV_DELIMITER)[0].lower()
    if section in former.tops:
        return tuple(name.lower().split(ENV_DELIMITER))
    if section not in model.model_fields:
        return ()
    *path, last = _path(name, model, ENV_DELIMITER, str.lower)
    return (*path, last.lower() if last.isupper() else last)


def _table_or_text(value: str) -> object:
    try:
        table = json.loads(value)
    except ValueError:
        return value
    return table if isinstance(table, dict) else value


def _wrong_variables(
    environ: Mapping[str, str], model: type[Config], former: FormerNames
) -> Iterator[tuple[str, str]]:
    """Yield variables with Lithify's prefix that would have no effect, and the error in each."""
    names = {option.name: _variable(option.name) for option in options(model)}
    by_letters = {
        _letters(variable): variable for variable in (*map(_variable, former.dotted()), *names.values())
    }
    sections = {name.partition(".")[0].upper() for name in (*names, *former.tops)}
    tables = {_variable(name) for name in _tables(model)}
    known = {*names.values(), *tables, *map(_variable, (*former.dotted(), *former.tops))}
    for variable, value in environ.items():
        name = variable.upper()
        if not name.startswith(ENV_PREFIX) or variable in _NO_SETTINGS or _is_of_kubernetes(name, value):
            continue
        says = f"the environment variable {variable} names "
        section, delimiter, _ = name.removeprefix(ENV_PREFIX).partition(ENV_DELIMITER)
        if not delimiter and _letters(name) in by_letters and name != by_letters[_letters(name)]:
            right = by_letters[_letters(name)]
            says += f"no setting; write {right}, with two underscores between section and name"
        elif section not in sections if delimiter else name not in known:
            right_ones = [right.removeprefix(ENV_PREFIX) for right in (*names.values(), *_NO_SETTINGS)]
            near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), right_ones, 1, 0.5)
            says += f"no setting{_did_you_mean([ENV_PREFIX + right for right in near])}"
        elif name in tables and not isinstance(_table_or_text(value), dict):  # the value may be a secret
            says += (
                f'a table of settings: write it as JSON, such as {{"name": "value"}}, or set one variable '
                f"for each, {name}{ENV_DELIMITER}NAME"
            )
        else:
            continue
        yield variable, says


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Return whether Kubernetes set the variable, for a service whose name begins with lithify."""
    return bool(_SERVICE_LINK.search(name)) or (name.endswith("_PORT") and bool(_LINK.match(value)))


def _known(model: type[Config]) -> set[str]:
    return {option.name for option in options(model)}


def _tables(model: type[Config]) -> set[str]:
    """Return the names of settings that contain others."""
    known = options(model)
    sections = {part for option in known for part in accumulate(option.name.split("."), "{}.{}".format)}
    return sections - {option.name for option in known if not isinstance(option.default, dict)}


def _letters(variable: str) -> str:
    return variable.replace("_", "")


def _variable(name: str) -> str:
    return ENV_PREFIX + name.replace(".", ENV_DELIMITER).upper()


def _nest(path: tuple[str, ...], value: object) -> dict[str, Any]:
    return {path[0]: _nest(path[1:], value) if len(path) > 1 else value}


def _path(
    name: str, config: type[Config], delimiter: str = ".", spelled: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Return the keys that lead to a setting; `spelled` normalizes names of sections and settings. Keys of a
    table that users fill, such as `spark.conf`, may contain dots."""
    model: type[BaseModel] | None = config
    path: list[str] = []
    has_more = True
    rest = name
    while has_more and model is not None:
        first, found, rest = rest.partition(delimiter)
        path.append(spelled(first))
        has_more = bool(found)
        field = model.model_fields.get(path[-1])
        if field is None and has_more:  # an unknown name
            return (*path, *map(spelled, rest.split(delimiter)))
        model = section_of(field.annotation) if field is not None else None
    return (*path, rest) if has_more else tuple(path)


def _merge(
    target: dict[str, Any],
    source: Mapping[str, Any],
    origins: dict[str, str],
    origin: Callable[[str], str],
    prefix: str = "",
) -> None:
    for key, value in source.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner = target.get(key)
            target[key] = dict(inner) if isinstance(inner, Mapping) else {}
            _merge(target[key], value, origins, origin, f"{name}.")
        else:
            if _other_spelling(key) not in source:
                target.pop(_other_spelling(key), None)
            target[key] = value
            origins[name.removesuffix(MILLISECONDS)] = origin(name)


def _named(flag: str, _name: str) -> str:
    return flag


def _origin(of: Callable[[str], str], formerly: Mapping[str, str], name: str) -> str:
    return of(formerly.get(name, name))


def _other_spelling(key: str) -> str:
    return key.removesuffix(MILLISECONDS) if key.endswith(MILLISECONDS) else key + MILLISECONDS


def _explained(error: ValidationError, origins: Mapping[str, str], model: type[Config]) -> Iterator[str]:
    """Yield the errors, each once."""
    return iter(dict.fromkeys(_explain(one, origins, model) for one in error.errors()))


def _explain(one: ErrorDetails, origins: Mapping[str, str], model: type[Config]) -> str:
    name = ".".join(str(part) for part in one["loc"] if part != "[key]")
    place = f" (from {', '.join(_origins_of(name.removesuffix(MILLISECONDS), origins))})"
    below = next((known for known in origins if known.startswith(f"{name}.")), name)
    if one["type"] == "extra_forbidden":
        return f"there is no setting {below}{place}{_did_you_mean(_nearest(below, model))}"
    if below != name and name in _known(model) - _tables(model):
        return f"there is no setting {below}{place}; did you mean {name}?"
    if one["type"] in ("model_type", "dict_type"):
        return f"setting {name}{place}: is a table; set its entries, as {name}.NAME"
    reason = one["msg"].removeprefix("Value error, ")
    return f"setting {name}{place}: {reason}"


def _origins_of(name: str, origins: Mapping[str, str]) -> list[str]:
    """Return the origins of a setting, or of all settings in a section."""
    found = [origin for known, origin in origins.items() if f"{known}.".startswith(f"{name}.")]
    return list(dict.fromkeys(found))


def _nearest(name: str, model: type[Config]) -> list[str]:
    """Return the nearest known name: first in the same section, then by the last part in any."""
    known = [option.name for option in options(model)]
    section, _, leaf = name.rpartition(".")
    near = difflib.get_close_matches(name, [k for k in known if k.rpartition(".")[0] == section], 1, 0.7)
    if near:
        return near
    leaves = {k.rpartition(".")[2]: k for k in reversed(known)}
    return [leaves[match] for match in difflib.get_close_matches(leaf, leaves, 1, 0.7)]


def _did_you_mean(names: list[str]) -> str:
    return f"; did you mean {names[0]}?" if names else "; `lithify config show` lists all"


def _leaves(model: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, Mapping) and value:
            yield from (((*path, name, key), inner) for key, inner in value.items())
        else:
            yield (*path, name), value
