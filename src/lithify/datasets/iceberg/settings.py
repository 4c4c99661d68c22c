"""From the settings to how a table's garbage is collected."""

from __future__ import annotations

from collections.abc import Mapping

from lithify.config.durations import to_milliseconds
from lithify.config.model import Config, DirectorySettings
from lithify.datasets.collecting import DirectoryOptions
from lithify.datasets.iceberg.garbage import DEFAULT_MIN_AGE_MS, Kind


def collector_options(config: Config) -> Mapping[Kind, DirectoryOptions]:
    """Its files are compacted ones, manifests, and versions of a list of compactions, as those of a database
    are, so the same settings say how; a minimum age that nobody has set is that of tables."""
    settings = config.garbage_collector_options
    return {
        Kind.DATA: _directory(settings.compacted_options),
        Kind.MANIFEST: _directory(settings.manifest_options),
        Kind.VERSION: _directory(settings.compactions_options),
        Kind.NOTE: _directory(settings.lithify_options),
        Kind.STAGED: _directory(settings.lithify_options),
    }


def _directory(of: DirectorySettings) -> DirectoryOptions:
    is_set = "min_age" in of.model_fields_set
    min_age_ms = to_milliseconds(of.min_age) if is_set else DEFAULT_MIN_AGE_MS
    return DirectoryOptions(to_milliseconds(of.interval), min_age_ms, of.dry_run)
