"""Check what a fleet's catalog may ask of a process that serves the fleet.

The catalog is an object in a store, and every writer of that store can write rules. So a rule may give its
datasets only settings of a closed list for each kind (`OwnSection.OF_DATASETS`): how data is treated. All
other settings belong to the operator, in the process's own file, environment or options:

| a rule's setting | allowed |
|---|---|
| how a dataset is treated | always |
| the region of a store, if it has the form of one | always; it becomes a part of a host name |
| a function (`slatedb.merge_operator`) | if `fleet.rules_may_set` lists it, or it is an entry point |
| a place, a host, another option of a store | if `fleet.rules_may_set` lists it |
| settings of the process (`spark`, `log`, `web`, …) | never |

A rule may name datasets below `fleet.places`; if that is empty, in any store, and in folders of this
machine only if the fleet is such a folder as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points

from lithify.base.errors import Refused
from lithify.config.model import STORE_OPTIONS, Config, ServiceSettings, lies_in, own_sections, url_of_store
from lithify.config.sections import MILLISECONDS, OwnSection
from lithify.fleet.catalog.model import DatasetRule, shown_setting
from lithify.fleet.catalog.patterns import canonical

HOOKS = "lithify.hooks"
"""The group of entry points for merge operators and filters."""
ANY = "*"
_REGIONS = frozenset(f"{STORE_OPTIONS}.{name}" for name in ("region", "aws_region", "aws_default_region"))
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")


def check_allowed(rule: DatasetRule, fleet: str, config: Config) -> None:
    """Raise `Refused` if a rule of the fleet at that URL asks for something that `config`, of this process,
    does not allow."""
    _check_place(rule.pattern, fleet, config.fleet.places)
    for name, value in rule.settings.items():
        if _is_of_process(name, config):
            raise Refused(
                f"rule {rule.pattern}: {name} is a setting of processes, which serve datasets of all rules; "
                "set it in the environment or file of the processes"
            )
        if not _is_allowed(name, value, config):
            shown = shown_setting(name, value)
            raise Refused(
                f"rule {rule.pattern}: {name} may name code, a place or a host, which rules may not do: set "
                "it in the processes' own settings, or allow it for each process with --set "
                f"'fleet.rules_may_set.{name}={shown}'"
            )


def _is_of_process(name: str, config: Config) -> bool:
    """Return whether a setting belongs to no dataset, so that no rule may give it."""
    section, _, rest = name.partition(".")
    if section == STORE_OPTIONS:
        return False
    own = _own_section(section, config)
    if own is None:
        return section in type(config).model_fields
    return own is ServiceSettings and not _is_among(rest, own.OF_DATASETS)


def _own_section(name: str, config: Config) -> type[OwnSection] | None:
    return next((own for own in own_sections(type(config)) if name == own.NAME), None)


def _check_place(pattern: str, fleet: str, places: str) -> None:
    url = canonical(url_of_store(pattern))
    below = _listed(places)
    if below:
        if not any(lies_in(one, canonical(place)) for place in below for one in (url, canonical(pattern))):
            raise Refused(
                f"rule {pattern}: names datasets outside of fleet.places ({', '.join(below)}); add the place "
                "to that setting of each process, or remove the rule"
            )
    elif "://" not in url and not _is_here(canonical(fleet)):
        raise Refused(
            f"rule {pattern}: names a folder of this machine, but the fleet's catalog is in a store; "
            "list the folder in fleet.places of each process, or remove the rule"
        )


def _is_here(fleet: str) -> bool:
    """Return whether the fleet's folder is on this machine or in this process."""
    return "://" not in fleet or fleet.startswith("memory://")


def _is_allowed(name: str, value: str, config: Config) -> bool:
    section, _, rest = name.partition(".")
    own = _own_section(section, config)
    if own is not None and _is_among(rest, own.OF_DATASETS):
        return True
    if name in _REGIONS and _REGION.fullmatch(value):
        return True
    listed = config.fleet.rules_may_set.get(name)
    if listed is not None and not {value, ANY}.isdisjoint(_listed(listed)):
        return True
    return own is not None and rest in own.HOOKS and value in _installed()


def _is_among(name: str, names: tuple[str, ...]) -> bool:
    plain = name.removesuffix(MILLISECONDS)
    return any(f"{plain}.".startswith(f"{one}.") for one in names)


def _installed() -> Iterator[str]:
    return (entry.value for entry in entry_points(group=HOOKS))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (one.strip() for one in text.split(","))))
