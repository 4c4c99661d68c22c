"""The section `[slatedb]` of the settings. Settings that SlateDB also has use its names."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from lithify.config.durations import Duration, at_least
from lithify.config.sections import (
    CollectionSettings,
    NaturalInt,
    OwnSection,
    PositiveInt,
    PositiveSize,
    Section,
    Texts,
    no_truth,
)
from lithify.config.sizes import Bytes


class SegmentSettings(Section):
    """Databases whose segments are buckets of time: each is merged once, when it is over."""

    pattern: str | None = Field(
        default=None,
        description="How prefixes contain their time, such as events/%Y-%m-%d/ or {u64:ms}; unset: they "
        "contain none",
    )
    granularity: Literal["hour", "day", "week", "month", "year"] = Field(
        default="day", description="How long a segment is"
    )
    time_zone: str = Field(default="UTC", description="The time zone of the segments")
    skip_from_now: Duration = Field(
        default=timedelta(0), description="Segments that end later than now minus this are not over yet"
    )
    skip_from_latest: Duration = Field(
        default=timedelta(0),
        description="Segments that end later than the start of the newest segment minus this are not "
        "over yet",
    )


class GarbageCollectorSettings(Section):
    """What of a database is collected as garbage. Names and defaults are SlateDB's; as there, zero-byte files
    of the write-ahead log are not deleted unless requested."""

    manifest_options: CollectionSettings = CollectionSettings()
    compactions_options: CollectionSettings = CollectionSettings()
    compacted_options: CollectionSettings = CollectionSettings()
    wal_options: CollectionSettings = CollectionSettings()
    wal_fence_options: CollectionSettings = CollectionSettings(dry_run=True)
    detach_options: CollectionSettings = CollectionSettings()
    """Its minimum age has no effect: a reference is needed or not."""
    lithify_options: CollectionSettings = CollectionSettings()
    """Lithify's notes about the database, and partly written files of killed writers."""


class SlatedbSettings(OwnSection):
    """How databases are compacted."""

    NAME: ClassVar = "slatedb"
    FORMERLY: ClassVar = {
        "l0_max_ssts": "l0_max_ssts",
        **{
            f"compactor_options.{name}": name
            for name in (
                "max_concurrent_compactions",
                "scheduler_options",
                "enable_trivial_move",
                "checkpoint_lifetime",
                "segments",
            )
        },
        **{
            f"compactor_options.worker.{name}": name
            for name in (
                "max_sst_size",
                "min_filter_keys",
                "compression_codec",
                "block_size",
                "merge_operator",
                "compaction_filter",
            )
        },
        **{
            f"garbage_collector_options.{name}": f"garbage_collector_options.{name}"
            for name in GarbageCollectorSettings.model_fields
        },
    }

    FOREIGN: ClassVar = {
        "compression_codec": "compression_codec",
        "filter_bits_per_key": "filter_bits_per_key",
        "min_filter_keys": "min_filter_keys",
        **dict.fromkeys(
            (
                "default_ttl",
                "flush_interval",
                "l0_flush_parallelism",
                "l0_max_ssts_per_key",
                "l0_sst_size_bytes",
                "manifest_poll_interval",
                "manifest_update_timeout",
                "max_unflushed_bytes",
                "max_wal_flushes_before_l0_flush",
                "metric_level",
                "object_store_cache_options",
                "wal_enabled",
            ),
            "",
        ),
    }

    OF_DATASETS: ClassVar = (
        "l0_max_ssts",
        "max_concurrent_compactions",
        "scheduler_options",
        "enable_trivial_move",
        "checkpoint_lifetime",
        "max_sst_size",
        "min_filter_keys",
        "filter_policies",
        "filter_bits_per_key",
        "filter_prefixes",
        "compression_codec",
        "block_size",
        "segments",
        "garbage_collector_options",
    )
    HOOKS: ClassVar = frozenset(("merge_operator", "compaction_filter"))

    l0_max_ssts: PositiveInt = Field(
        default=8, description="The writer's limit of L0 SSTs, used to estimate when it stalls"
    )
    max_concurrent_compactions: PositiveInt = Field(
        default=4, description="Compactions that may be scheduled or running at once"
    )
    scheduler_options: Texts = Field(default_factory=dict, description="Options of the size-tiered scheduler")
    enable_trivial_move: bool = Field(
        default=False, description="Combine sources without common keys into one run without reading them"
    )
    checkpoint_lifetime: Annotated[Duration, at_least(timedelta(seconds=1))] = Field(
        default=timedelta(minutes=15), description="How long a commit keeps its inputs readable"
    )
    max_sst_size: PositiveSize = Field(
        default=Bytes(268_435_456), description="Bytes of data in one output SST"
    )
    min_filter_keys: NaturalInt = Field(
        default=1000, description="The smallest number of keys for which an SST gets a filter"
    )
    filter_policies: str | None = Field(
        default=None,
        description="Names of the filters of outputs, separated by commas, such as _bf, or none; unset: as "
        "in the newest input that has any",
    )
    filter_bits_per_key: Annotated[int, BeforeValidator(no_truth), Field(ge=1, le=64)] | None = Field(
        default=None, description="Bits per key of filters; unset: as in the newest input that has any"
    )
    filter_prefixes: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="How many first bytes of keys prefix extractors take, by the names they have in filters",
    )
    compression_codec: str | None = Field(
        default=None, description="none, snappy, zlib, lz4 or zstd; unset: as in the newest input"
    )
    block_size: PositiveSize | None = Field(
        default=None, description="Bytes of a data block; unset: as in the inputs"
    )
    merge_operator: str | None = Field(
        default=None, description="Your merge operator, as package.module:function"
    )
    compaction_filter: str | None = Field(
        default=None, description="Your row filter, as package.module:function or package.module:class"
    )
    segments: SegmentSettings = SegmentSettings()
    garbage_collector_options: GarbageCollectorSettings = GarbageCollectorSettings()
