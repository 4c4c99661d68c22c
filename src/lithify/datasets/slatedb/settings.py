"""From the settings to what a database's compactions and collections are made with."""

from __future__ import annotations

import logging
from datetime import timedelta

from lithify.config.durations import to_milliseconds
from lithify.config.model import Config, DirectorySettings, SegmentSettings
from lithify.datasets.collecting import DirectoryOptions
from lithify.datasets.slatedb.collector import GarbageCollectorOptions
from lithify.datasets.slatedb.model import Codec
from lithify.datasets.slatedb.options import SlateOptions
from lithify.datasets.slatedb.tiered import TieredPolicy, parse_scheduler_options
from lithify.datasets.slatedb.timeline import SegmentTimes
from lithify.errors import Refused
from lithify.planning.timeline.calendar import Calendar, Granularity

_log = logging.getLogger("lithify")


def slate_options(config: Config) -> SlateOptions:
    """How compactions are planned and written."""
    compactor, worker = config.compactor_options, config.compactor_options.worker
    codec = worker.compression_codec
    if codec is not None and codec.upper() not in Codec.__members__:
        raise Refused(f"unknown compression {codec!r}; use one of {', '.join(Codec.__members__).lower()}")
    parsed = parse_scheduler_options(
        compactor.scheduler_options,
        TieredPolicy(max_concurrent_compactions=compactor.max_concurrent_compactions),
    )
    for warning in parsed.warnings:
        _log.warning("%s", warning)
    return SlateOptions(
        policy=parsed.policy,
        segment_times=_segment_times(compactor.segments),
        l0_max_ssts=config.l0_max_ssts,
        checkpoint_lifetime_s=round(compactor.checkpoint_lifetime.total_seconds()),
        enable_trivial_move=compactor.enable_trivial_move,
        max_sst_size=worker.max_sst_size,
        block_size=worker.block_size,
        compression=Codec[codec.upper()] if codec is not None else None,
        min_filter_keys=worker.min_filter_keys,
        merge_operator=worker.merge_operator,
        compaction_filter=worker.compaction_filter,
    )


def _segment_times(settings: SegmentSettings) -> SegmentTimes | None:
    if settings.pattern is None:
        return None
    microsecond = timedelta(microseconds=1)
    return SegmentTimes(
        settings.pattern,
        Calendar(Granularity(settings.granularity), settings.time_zone),
        settings.skip_from_now // microsecond,
        settings.skip_from_latest // microsecond,
    )


def collector_options(config: Config) -> GarbageCollectorOptions:
    """How its garbage is collected."""
    settings = config.garbage_collector_options
    return GarbageCollectorOptions(
        manifest_options=_directory(settings.manifest_options),
        wal_options=_directory(settings.wal_options),
        wal_fence_options=_directory(settings.wal_fence_options),
        compacted_options=_directory(settings.compacted_options),
        compactions_options=_directory(settings.compactions_options),
        detach_options=_directory(settings.detach_options),
        lithify_options=_directory(settings.lithify_options),
    )


def _directory(of: DirectorySettings) -> DirectoryOptions:
    return DirectoryOptions(to_milliseconds(of.interval), to_milliseconds(of.min_age), of.dry_run)
