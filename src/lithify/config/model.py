"""The settings there are, as frozen values with defaults and one line of help each.

What SlateDB has too goes by SlateDB's name, in the section SlateDB has it in: durations are text with a
unit (`"5s"`, `"1m 30s"`), sizes are bytes. A duration may also be given as whole milliseconds under its
name with `_ms` behind, as SlateDB's design documents write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from lithify.config.durations import Duration, format_duration, from_milliseconds

ENV_PREFIX = "LITHIFY_"
ENV_DELIMITER = "__"
MILLISECONDS = "_ms"


def _to_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"must be text or a number, not {type(value).__name__}")  # the value may be a secret


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


Text = Annotated[str, BeforeValidator(_to_text)]
MAX_NUMBER = 1 << 53
"""The largest number that every program which reads TOML or JSON reads as it is."""
PositiveInt = Annotated[int, BeforeValidator(_no_truth), Field(ge=1, le=MAX_NUMBER)]
NaturalInt = Annotated[int, BeforeValidator(_no_truth), Field(ge=0, le=MAX_NUMBER)]


class Section(BaseModel):
    """One section of the settings. A duration `x` may be given as `x_ms`, in whole milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _take_milliseconds(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        taken: dict[str, object] = {}
        for key, value in given.items():
            name = key.removesuffix(MILLISECONDS)
            field = cls.model_fields.get(name)
            if name == key or field is None or field.annotation is not timedelta:
                taken[key] = value
            elif name in given:
                raise ValueError(f"{name} and {key} are the same setting; give one of them")
            else:
                taken[name] = from_milliseconds(key, value)
        return taken


class WorkerSettings(Section):
    """How workers work. Names and defaults are SlateDB's where it has them."""

    max_concurrent_compactions: PositiveInt = Field(
        default=4, description="Compactions one worker process runs at once"
    )
    compactions_poll_interval: Duration = Field(
        default=timedelta(seconds=5), description="How often an idle worker looks for work"
    )
    heartbeat_interval: Duration = Field(
        default=timedelta(seconds=10), description="Longest time between two heartbeats while work moves"
    )
    heartbeat_min_interval: Duration = Field(
        default=timedelta(seconds=2), description="Shortest time between two heartbeats"
    )
    heartbeat_bytes: NaturalInt = Field(
        default=100_000, description="Bytes that must have moved since the last heartbeat for the next one"
    )
    range_start_timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="How long work may wait for a free slot or for Spark to start",
    )
    first_retry_pause: Duration = Field(
        default=timedelta(seconds=1),
        description="Pause after a failed attempt at a compaction; four times as long after each further one",
    )
    max_retry_pause: Duration = Field(
        default=timedelta(minutes=10), description="Longest pause between two attempts at a compaction"
    )
    max_sst_size: PositiveInt = Field(default=268_435_456, description="Bytes of data in one output SST")
    min_filter_keys: NaturalInt = Field(default=1000, description="Keys an SST must have to get a filter")
    compression_codec: str | None = Field(
        default=None, description="none, snappy, zlib, lz4 or zstd; unset: as in the newest input"
    )
    block_size: PositiveInt | None = Field(
        default=None, description="Bytes of a data block; unset: as in the inputs"
    )
    merge_operator: str | None = Field(
        default=None, description="Your merge operator, as package.module:function"
    )
    compaction_filter: str | None = Field(
        default=None, description="Your row filter, as package.module:function"
    )


class SegmentSettings(Section):
    """Databases whose segments are buckets of time: each is merged once, when it is over."""

    pattern: str | None = Field(
        default=None,
        description="How a prefix tells its time, such as events/%Y-%m-%d/ or {u64:ms}; unset: not at all",
    )
    granularity: Literal["hour", "day", "week", "month", "year"] = Field(
        default="day", description="How long a segment is"
    )
    time_zone: str = Field(default="UTC", description="The time zone of the segments")
    skip_from_now: Duration = Field(
        default=timedelta(0), description="Segments that end later than this before now are not over"
    )
    skip_from_latest: Duration = Field(
        default=timedelta(0), description="Nor are those that end later than this before the newest begins"
    )


class CompactorOptions(Section):
    """How compactions are coordinated. Names and defaults are SlateDB's where it has them."""

    poll_interval: Duration = Field(
        default=timedelta(seconds=5), description="How often an idle coordinator looks"
    )
    commit_compacted_interval: Duration = Field(
        default=timedelta(seconds=1), description="How often a coordinator looks while compactions are active"
    )
    worker_heartbeat_timeout: Duration = Field(
        default=timedelta(seconds=30), description="Silence after which a worker's compaction is taken back"
    )
    max_attempts: PositiveInt = Field(
        default=5, description="Failed attempts after which a compaction is given up"
    )
    checkpoint_lifetime: Duration = Field(
        default=timedelta(minutes=15), description="How long a commit keeps its inputs readable"
    )
    max_concurrent_compactions: PositiveInt = Field(
        default=4, description="Compactions that may be scheduled or running at once"
    )
    embedded_worker: bool = Field(
        default=True, description="Whether `lithify run` works too, or only coordinates"
    )
    scheduler_options: dict[str, Text] = Field(
        default_factory=dict, description="Options of the size-tiered scheduler"
    )
    enable_trivial_move: bool = Field(
        default=False, description="Make one run of sources without common keys without reading them"
    )
    segments: SegmentSettings = SegmentSettings()
    worker: WorkerSettings = WorkerSettings()


class DirectorySettings(Section):
    """How one kind of garbage is collected. Names and defaults are SlateDB's."""

    interval: Duration = Field(default=timedelta(minutes=10), description="How often")
    min_age: Duration = Field(default=timedelta(minutes=5), description="What is younger is kept")
    dry_run: bool = Field(default=False, description="Only report, delete nothing")


class GarbageCollectorSettings(Section):
    """What `lithify run` and `lithify coordinator` collect. Names and defaults are SlateDB's where it has
    them."""

    enabled: bool = Field(default=True, description="Whether the coordinator collects garbage")
    manifest_options: DirectorySettings = DirectorySettings()
    compactions_options: DirectorySettings = DirectorySettings()
    compacted_options: DirectorySettings = DirectorySettings()
    wal_options: DirectorySettings = DirectorySettings()
    wal_fence_options: DirectorySettings = DirectorySettings(dry_run=True)
    detach_options: DirectorySettings = DirectorySettings()
    lithify_options: DirectorySettings = DirectorySettings()


class SparkSettings(Section):
    """Where the data work runs."""

    master: str = Field(
        default="local[*]", description="Spark master: local[*], spark://…, yarn, k8s://…, sc://…"
    )
    conf: dict[str, Text] = Field(default_factory=dict, description="Spark's own settings")


class LogSettings(Section):
    """What is said on standard error."""

    format: Literal["text", "json"] = Field(default="text", description="text for people, json for machines")
    level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None,
        description="Least level that is shown; unset: info for services, warning for the rest",
    )


class MetricsSettings(Section):
    """The Prometheus endpoint."""

    port: Annotated[int, BeforeValidator(_no_truth), Field(ge=0, le=65535)] | None = Field(
        default=None, description="Port of the metrics endpoint (0: any free one); unset: none"
    )
    host: str = Field(default="127.0.0.1", description="Address the metrics endpoint listens on")


class Config(BaseSettings):
    """All settings. Frozen; made by `load`."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER
    )

    l0_max_ssts: PositiveInt = Field(
        default=8, description="The writer's limit of L0 SSTs, to tell how long until it stalls"
    )
    store_options: dict[str, Text] = Field(
        default_factory=dict, description="Settings of the object store, such as aws_endpoint"
    )
    table_options: dict[str, Text] = Field(
        default_factory=dict,
        description="Policy of Iceberg tables, such as granularity; wins over their properties lithify.…",
    )
    compactor_options: CompactorOptions = CompactorOptions()
    garbage_collector_options: GarbageCollectorSettings = GarbageCollectorSettings()
    spark: SparkSettings = SparkSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` has put together."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that exists."""

    name: str
    default: object
    description: str


def options() -> tuple[Option, ...]:
    """Every setting there is, with its default."""
    return tuple(_options(Config(), ""))


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section a field holds, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _options(section: BaseModel, prefix: str) -> Iterator[Option]:
    for name, field in type(section).model_fields.items():
        default = getattr(section, name)
        if isinstance(default, BaseModel):
            yield from _options(default, f"{prefix}{name}.")
        else:
            yield Option(f"{prefix}{name}", plain(default), field.description or "")


def plain(value: object) -> object:
    """A value as the TOML file has it."""
    return format_duration(value) if isinstance(value, timedelta) else value
