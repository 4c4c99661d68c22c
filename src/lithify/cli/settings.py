"""From the options of a command to the effective settings.

Every option that stands for a setting is listed here, once, with the setting's name. An option that was
not given leaves the setting to the environment, the file, or its default.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lithify.cli.running import pairs
from lithify.observe.logs import LOGGER, set_up_logs
from lithify.observe.secrets import conceal
from lithify.redaction import is_secret

if TYPE_CHECKING:
    from lithify.config.loading import Loaded
    from lithify.config.model import Config

_WORKER = "compactor_options.worker"
SINGLE = {
    "master": ("--master", "spark.master"),
    "merge_operator": ("--merge-operator", f"{_WORKER}.merge_operator"),
    "compaction_filter": ("--compaction-filter", f"{_WORKER}.compaction_filter"),
    "block_size": ("--block-size", f"{_WORKER}.block_size"),
    "compression": ("--compression", f"{_WORKER}.compression_codec"),
    "max_sst_size": ("--max-sst-size", f"{_WORKER}.max_sst_size"),
    "log_format": ("--log-format", "log.format"),
    "metrics_port": ("--metrics-port", "metrics.port"),
}
"""Options with one value: parameter of the command, option, setting."""
TABLES = {
    "store_option": ("--store-option", "store_options"),
    "scheduler_option": ("--scheduler-option", "compactor_options.scheduler_options"),
    "spark_conf": ("--spark-conf", "spark.conf"),
}
"""Options of the form KEY=VALUE: parameter of the command, option, table of settings."""
_PROVIDERS = ("AWS_", "AZURE_", "GOOGLE_", "PYICEBERG_")
"""What the environment variables of object stores and catalogs begin with."""


def load_settings(config: Path | None, sets: list[str] | None, **given: object) -> Loaded:
    """The effective settings and where they came from. `given` are parameters of the command."""
    from lithify.config.loading import load

    flags: dict[str, tuple[str, object]] = {}
    for name, text in pairs(sets).items():
        flags[name] = (f"--set {name}", text)
    for parameter, value in given.items():
        if parameter in TABLES:
            option, table = TABLES[parameter]
            given_pairs = pairs(value if isinstance(value, list) else None)
            flags |= {f"{table}.{key}": (option, text) for key, text in given_pairs.items()}
        elif value is not None:
            option, name = SINGLE[parameter]
            flags[name] = (option, value)
    loaded = load(config, flags)
    conceal(loaded.secrets())
    conceal(value for name, value in os.environ.items() if name.startswith(_PROVIDERS) and is_secret(name))
    return loaded


def settings(
    config: Path | None, sets: list[str] | None, *, log_level: str = "warning", **given: object
) -> Config:
    """The effective settings (see `load_settings`), and logs as they say. `log_level` is the least level
    shown when neither the settings nor `lithify --verbose` say one."""
    effective = load_settings(config, sets, **given).config
    logger = logging.getLogger(LOGGER)
    chosen = "debug" if logger.isEnabledFor(logging.DEBUG) else log_level
    set_up_logs(effective.log.format, effective.log.level or chosen)
    return effective
