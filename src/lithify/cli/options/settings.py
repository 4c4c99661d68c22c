"""Effective settings from the options of a command.

Every option that stands for a setting is listed here once, with the setting's name; the kinds define their
own. An option that was not given leaves the setting to the environment, the file, or its default.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lithify.base.redaction import is_secret
from lithify.cli.options.of_kinds import NOTHING, Given
from lithify.cli.running import pairs
from lithify.datasets.registry import all_registered, config_type
from lithify.observe.logs import LOGGER, set_up_logs
from lithify.observe.secrets import conceal

if TYPE_CHECKING:
    from lithify.config.loading import Loaded
    from lithify.config.model import Config

SINGLE = {
    "master": ("--master", "spark.master"),
    "log_format": ("--log-format", "log.format"),
    "metrics_port": ("--metrics-port", "metrics.port"),
    "web_port": ("--web-port", "web.port"),
    "port": ("--port", "web.port"),
}
"""Options with one value: parameter of the command, option, setting."""
TABLES = {
    "store_option": ("--store-option", "store_options"),
    "spark_conf": ("--spark-conf", "spark.conf"),
}
"""Options of the form KEY=VALUE: parameter of the command, option, table of settings."""
_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_")
"""Prefixes of the environment variables of object stores."""


def load_settings(
    config: Path | None, sets: list[str] | None, of_kinds: Given = NOTHING, **given: object
) -> Loaded:
    """Return the effective settings with their origins, and conceal secrets. `given` are parameters of the
    command, `of_kinds` options of one kind of dataset."""
    from lithify.config.loading import load

    flags: dict[str, tuple[str, object]] = {}
    for name, text in pairs(sets).items():
        flags[name] = (f"--set {name}", text)
    found = [(*(SINGLE | TABLES)[parameter], value) for parameter, value in given.items()]
    found += [(flag, setting, value) for setting, (flag, value) in of_kinds.settings.items()]
    for flag, setting, value in found:
        if isinstance(value, list):
            flags |= {f"{setting}.{key}": (flag, text) for key, text in pairs(value).items()}
        elif value is not None:
            flags[setting] = (flag, value)
    loaded = load(config, flags, config_type())
    conceal(loaded.secrets())
    read = (*_PROVIDERS, *(prefix for kind in all_registered() for prefix in kind.load_options().environment))
    conceal(value for name, value in os.environ.items() if name.startswith(read) and is_secret(name))
    return loaded


def settings(
    config: Path | None,
    sets: list[str] | None,
    of_kinds: Given = NOTHING,
    *,
    log_level: str = "warning",
    **given: object,
) -> Config:
    """Return the effective settings (see `load_settings`), and set up logs accordingly. `log_level` is the
    least level shown if the settings have none; `lithify --verbose` wins over both."""
    loaded = load_settings(config, sets, of_kinds, **given)
    effective = loaded.config
    logger = logging.getLogger(LOGGER)
    is_verbose = logger.isEnabledFor(logging.DEBUG)
    set_up_logs(effective.log.format, "debug" if is_verbose else effective.log.level or log_level)
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    return effective
