"""The settings that all kinds of datasets share, as frozen values with defaults and one line of help each.

Each kind adds a section of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Annotated, ClassVar, Literal, Self, TypeVar
from urllib.parse import unquote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from lithify.config.durations import (
    FOREVER,
    Duration,
    PositiveDuration,
    Wait,
    format_duration,
    to_milliseconds,
)
from lithify.config.sections import NaturalSize, OwnSection, PositiveInt, Section, Text, Texts, no_truth
from lithify.config.sizes import Bytes

ENV_PREFIX = "LITHIFY_"
ENV_DELIMITER = "__"
_OF_PLACE = "#"
"""The separator of a URL and an option for the stores at that URL; it does not occur in a dataset's URL."""
STORE_OPTIONS = "store_options"
"""The name of their table in the settings."""
_BEFORE_STORE = re.compile(r"^[a-z]+\+(?=[a-z0-9]+:)")

SectionT = TypeVar("SectionT", bound=OwnSection)


class WorkerSettings(Section):
    """Settings of workers. Names and defaults are SlateDB's where it has them."""

    max_concurrent_compactions: PositiveInt = Field(
        default=4, description="Compactions one worker process runs at once"
    )
    compactions_poll_interval: PositiveDuration = Field(
        default=timedelta(seconds=5), description="How often an idle worker polls for work"
    )
    heartbeat_interval: PositiveDuration = Field(
        default=timedelta(seconds=10), description="Longest time between two heartbeats while work progresses"
    )
    heartbeat_min_interval: Duration = Field(
        default=timedelta(seconds=2), description="Shortest time between two heartbeats"
    )
    heartbeat_bytes: NaturalSize = Field(
        default=Bytes(100_000),
        description="Bytes that must be processed since the last heartbeat before the next one",
    )
    range_start_timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="How long work may wait for a free slot or for Spark to start",
    )
    first_retry_pause: Duration = Field(
        default=timedelta(seconds=1),
        description="Pause after the first failed attempt of a compaction; four times as long after each "
        "further one",
    )
    max_retry_pause: Duration = Field(
        default=timedelta(minutes=10), description="Longest pause between two attempts of a compaction"
    )

    @property
    def compactions_poll_interval_s(self) -> float:
        return self.compactions_poll_interval.total_seconds()


class ServiceSettings(OwnSection):
    """Settings of coordination and execution. Names and defaults are SlateDB's where it has them."""

    NAME: ClassVar = "service"
    FORMERLY: ClassVar = {
        "garbage_collector_options.enabled": "collect_garbage",
        **{
            f"compactor_options.{name}": name
            for name in (
                "poll_interval",
                "commit_compacted_interval",
                "worker_heartbeat_timeout",
                "max_attempts",
                "embedded_worker",
            )
        },
        **{f"compactor_options.worker.{name}": f"worker.{name}" for name in WorkerSettings.model_fields},
    }

    OF_DATASETS: ClassVar = (
        "worker_heartbeat_timeout",
        "max_attempts",
        "collect_garbage",
        "store_wait",
        "keep_history",
    )

    poll_interval: PositiveDuration = Field(
        default=timedelta(seconds=5), description="How often an idle coordinator polls"
    )
    commit_compacted_interval: PositiveDuration = Field(
        default=timedelta(seconds=1), description="How often a coordinator polls while compactions are active"
    )
    worker_heartbeat_timeout: PositiveDuration = Field(
        default=timedelta(seconds=30),
        description="Time without a heartbeat after which a worker's compaction is reclaimed",
    )
    max_attempts: PositiveInt = Field(
        default=5, description="Failed attempts after which a compaction is given up"
    )
    embedded_worker: bool = Field(
        default=True, description="Whether `lithify run` also runs compactions, or only coordinates"
    )
    collect_garbage: bool = Field(
        default=True, description="Whether `lithify run` and `lithify coordinator` collect garbage"
    )
    store_wait: Wait = Field(
        default=timedelta(minutes=5),
        description="How long a command or a task waits for an unavailable store (forever: without limit); "
        "by default a command waits 30 seconds for a store that has never answered; services retry without "
        "limit",
    )
    keep_history: Duration = Field(
        default=timedelta(days=90),
        description="How long the record of each commit is kept (`lithify history`); 0s: none is written",
    )
    worker: WorkerSettings = WorkerSettings()

    @model_validator(mode="after")
    def _check_silence(self) -> Self:
        """Require heartbeats more often than the timeout, or live workers would count as dead. If only a
        short timeout is set, shorten the default heartbeat interval to a third of it."""
        if self.worker.heartbeat_interval >= self.worker_heartbeat_timeout:
            if "heartbeat_interval" not in self.worker.model_fields_set:
                third = max(self.worker_heartbeat_timeout / 3, timedelta(milliseconds=1))
                worker = self.worker.model_copy(update={"heartbeat_interval": third})
                object.__setattr__(self, "worker", worker)
                return self
            interval, timeout = map(
                format_duration, (self.worker.heartbeat_interval, self.worker_heartbeat_timeout)
            )
            raise ValueError(
                f"worker.heartbeat_interval ({interval}) must be shorter than worker_heartbeat_timeout "
                f"({timeout}), or live workers count as dead; raise worker_heartbeat_timeout or "
                "lower worker.heartbeat_interval"
            )
        return self

    @property
    def poll_interval_s(self) -> float:
        return self.poll_interval.total_seconds()

    @property
    def commit_compacted_interval_s(self) -> float:
        return self.commit_compacted_interval.total_seconds()

    @property
    def worker_heartbeat_timeout_ms(self) -> int:
        return to_milliseconds(self.worker_heartbeat_timeout)

    @property
    def keep_history_ms(self) -> int:
        return to_milliseconds(self.keep_history)

    @property
    def store_wait_s(self) -> float:
        """`store_wait` in seconds; infinite for `forever`."""
        return math.inf if self.store_wait == FOREVER else self.store_wait.total_seconds()


class SparkSettings(Section):
    """Where compactions run."""

    master: str | None = Field(
        default=None,
        description="Spark master: local[*], spark://…, yarn, k8s://…, sc://…; unset: from spark-submit or "
        "spark-defaults.conf, else local[*]",
    )
    conf: Texts = Field(default_factory=dict, description="Spark's settings")


class LogSettings(Section):
    """Logs on standard error."""

    format: Literal["text", "json"] = Field(default="text", description="text for people, json for machines")
    level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None,
        description="Lowest level that is shown; unset: info for services, warning for other commands",
    )


class MetricsSettings(Section):
    """The Prometheus endpoint."""

    port: Annotated[int, BeforeValidator(no_truth), Field(ge=0, le=65535)] | None = Field(
        default=None, description="Port of the metrics endpoint (0: any free one); unset: none"
    )
    host: str = Field(default="127.0.0.1", description="Address the metrics endpoint listens on")


class WebSettings(Section):
    """The dashboard."""

    port: Annotated[int, BeforeValidator(no_truth), Field(ge=0, le=65535)] | None = Field(
        default=None, description="Port of the dashboard (0: any free one); unset: 8090, none for services"
    )
    host: str = Field(default="127.0.0.1", description="Address the dashboard listens on")
    names: str = Field(
        default="",
        description="Host names of the dashboard, separated by commas; IP addresses always work",
    )
    token: Text = Field(
        default="",
        description="Required to view and act; empty: no actions, and everyone on this machine may view",
    )


class FleetSettings(Section):
    """Limits on what the catalog of a fleet may demand of a process; other users may be able to write the
    catalog."""

    places: str = Field(
        default="",
        description="URLs at or below which a fleet's rules may name datasets, separated by commas; empty: "
        "in any store, and on this machine only if the fleet is on it too",
    )
    rules_may_set: Texts = Field(
        default_factory=dict,
        description="Settings that name code, a place or a host, and the values that rules may give them, "
        "separated by commas (*: any)",
    )


class Config(BaseModel):
    """The settings that all kinds share; `config_type` adds the sections of kinds. Frozen; created by
    `load`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store_options: Texts = Field(
        default_factory=dict,
        description="Options of the object store, such as aws_endpoint (URL#aws_endpoint: only for that URL)",
    )
    service: ServiceSettings = ServiceSettings()
    spark: SparkSettings = SparkSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    web: WebSettings = WebSettings()
    fleet: FleetSettings = FleetSettings()

    @field_validator("store_options")
    @classmethod
    def _check_places(cls, given: dict[str, str]) -> dict[str, str]:
        for key in given:
            place, separator, name = key.rpartition(_OF_PLACE)
            if (separator or ":" in name) and not (":" in place and name):
                raise ValueError(
                    f"{key!r} is neither a name nor of the form URL{_OF_PLACE}name; "
                    "a = in the URL of an option is written %3D"
                )
        return given

    def store_options_of(self, url: str) -> dict[str, str]:
        """Return the options of the store of the dataset at `url`: the general ones, overridden by those for
        URLs at or above it, a longer URL over a shorter one. They also apply to URLs with a prefix
        (`kafka+s3://…`)."""
        places: dict[str, dict[str, str]] = {}
        for key, value in self.store_options.items():
            place, _, name = key.rpartition(_OF_PLACE)
            places.setdefault(place.rstrip("/"), {})[name] = value
        chosen = places.pop("", {})
        for place in sorted(places, key=len):
            if lies_in(url, place):
                chosen |= places[place]
        return chosen

    def of(self, section: type[SectionT]) -> SectionT:
        """Return the section of one kind, or its defaults if these settings lack the section."""
        found = getattr(self, section.NAME, None)
        return found if isinstance(found, section) else section()


def lies_in(url: str, place: str) -> bool:
    """Return whether a URL, with or without its prefix (`kafka+s3://…`), is at or below another one."""
    url, below = unquote(url), unquote(place.rstrip("/")) + "/"
    return any(f"{one}/".startswith(below) for one in (url, url_of_store(url)))


def url_of_store(url: str) -> str:
    """Return the URL without the prefix of its kind."""
    return _BEFORE_STORE.sub("", url)


@cache
def config_type(kinds: tuple[type[OwnSection], ...] = ()) -> type[Config]:
    """Return the type of settings with the sections of these kinds."""
    fields: dict[str, object] = {kind.NAME: (kind, kind()) for kind in kinds}
    made: type[Config] = create_model("Config", __base__=Config, **fields)  # type: ignore[call-overload]
    return made


@dataclass(frozen=True, slots=True)
class Option:
    """A setting, with its default and help."""

    name: str
    default: object
    description: str


def options(config: type[Config]) -> tuple[Option, ...]:
    """Return all settings."""
    return tuple(_options(config(), ""))


def own_sections(config: type[Config]) -> Iterator[type[OwnSection]]:
    """Yield the sections that have former names."""
    for field in config.model_fields.values():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, OwnSection):
            yield section


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section type of a field; `None` if the field is not a section."""
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
    """Return a value as written in a TOML file."""
    return format_duration(value) if isinstance(value, timedelta) else value
