"""The section `[kafka]` of the settings. Settings that a topic has too have Kafka's names."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Literal

from pydantic import Field

from lithify.config.durations import FOREVER, Duration, Wait
from lithify.config.sections import CollectionSettings, OwnSection, PositiveSize
from lithify.config.sizes import Bytes


class KafkaSettings(OwnSection):
    """How keyed logs are compacted."""

    NAME: ClassVar = "kafka"

    OF_DATASETS: ClassVar = (
        "min_cleanable_dirty_ratio",
        "min_compaction_lag",
        "max_compaction_lag",
        "delete_retention",
        "keep_unkeyed",
        "cleanup_policy",
        "newest_segment",
        "segment_bytes",
        "producer_id_expiration",
        "quiet_period",
        "copy_to",
        "live",
        "broker_build",
        "member",
        "garbage",
    )

    output: str | None = Field(
        default=None,
        description="URL of the folder for the output; unset: next to the source, with .compacted "
        "appended to its name",
    )
    min_cleanable_dirty_ratio: float = Field(
        default=0.5, ge=0, le=1, description="Share of new bytes at which a partition is compacted"
    )
    min_compaction_lag: Duration = Field(
        default=timedelta(0), description="Segments with a record younger than this are not compacted"
    )
    max_compaction_lag: Wait = Field(
        default=FOREVER, description="A new segment older than this makes its partition due at once"
    )
    delete_retention: Duration = Field(
        default=timedelta(days=1), description="How long tombstones are kept once nothing older is left"
    )
    keep_unkeyed: bool | None = Field(
        default=None,
        description="Keep records without a key, or remove them, as Kafka's own compaction does; unset: a "
        "partition in a folder of segments that has such records is not compacted",
    )
    cleanup_policy: Literal["compact"] | None = Field(
        default=None,
        description="The cleanup.policy of all topics in folders of segments; unset: what is known from "
        "__cluster_metadata next to them",
    )
    newest_segment: bool = Field(
        default=False,
        description="Compact the newest segment in folders of segments too, for logs that nothing appends "
        "to any more",
    )
    segment_bytes: PositiveSize = Field(
        default=Bytes(1 << 30), le=(1 << 31) - 1, description="Bytes of a new segment, less than 2 GiB"
    )
    producer_id_expiration: Duration = Field(
        default=timedelta(days=1), description="How long the state of an inactive producer is kept"
    )
    quiet_period: Duration = Field(
        default=timedelta(seconds=10),
        description="How long the broker of a topic in its bucket must have written nothing before the "
        "topic is changed; 0s: change it even while the broker writes",
    )
    copy_to: str | None = Field(
        default=None,
        description="Name of a new topic of the cluster, to which a topic in a broker's bucket is "
        "copied; unset: it is compacted in place",
    )
    live: bool = Field(
        default=False,
        description="Compact a topic in a broker's bucket while the broker runs, which is experimental: "
        "consumers may receive some records twice",
    )
    broker_build: str | None = Field(
        default=None,
        description="The version of the broker's code, which doctor checks and live needs: 0.7.0-pre.1 "
        "or later",
    )
    group: str | None = Field(
        default=None,
        description="URL of the folder of the group of copies that it belongs to; unset: no group",
    )
    member: str | None = Field(default=None, description="Its name in that group")
    garbage: CollectionSettings = CollectionSettings(min_age=timedelta(hours=1))
