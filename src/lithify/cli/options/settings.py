"""Effective settings from the options of a command. An option that was not given leaves the setting to the
environment, the file, or its default."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from lithify.base.redaction import is_secret
from lithify.cli.running import pairs
from lithify.datasets.registry import all_registered, config_type
from lithify.observe.logs import LOGGER, set_up_logs
from lithify.observe.secrets import conceal

if TYPE_CHECKING:
    from lithify.config.loading import Loaded

_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_")
"""Prefixes of the environment variables of object stores."""


def load_settings(
    file: Path | None, sets: list[str] | None, given: Mapping[str, tuple[str, object]] = MappingProxyType({})
) -> Loaded:
    """Return the effective settings with their origins, and conceal secrets. `given` are options that stand
    for settings: flag and value, or values of the form KEY=VALUE, by setting."""
    from lithify.config.loading import load

    flags: dict[str, tuple[str, object]] = {}
    for name, text in pairs(sets).items():
        flags[name] = (f"--set {name}", text)
    for setting, (flag, value) in given.items():
        if isinstance(value, list):
            flags |= {f"{setting}.{key}": (flag, text) for key, text in pairs(value).items()}
        elif value is not None:
            flags[setting] = (flag, value)
    loaded = load(file, flags, config_type())
    conceal(loaded.secrets())
    read = (*_PROVIDERS, *(prefix for kind in all_registered() for prefix in kind.load_options().environment))
    conceal(value for name, value in os.environ.items() if name.startswith(read) and is_secret(name))
    return loaded


def set_up_logs_of(loaded: Loaded, level: str) -> None:
    """Set up logs according to the settings, and log their warnings. `level` is the least level shown if the
    settings have none; `lithify --verbose` wins over both."""
    log = loaded.config.log
    logger = logging.getLogger(LOGGER)
    is_verbose = logger.isEnabledFor(logging.DEBUG)
    set_up_logs(log.format, "debug" if is_verbose else log.level or level)
    for warning in loaded.warnings:
        logger.warning("%s", warning)
