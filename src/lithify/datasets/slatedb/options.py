"""Options for the compactions of a SlateDB database. They have SlateDB's names if SlateDB has the option."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from lithify.base.errors import Refused
from lithify.datasets.slatedb.compaction.task import FilterRules, SstOptions
from lithify.datasets.slatedb.hooks import load_function, load_merge_operator
from lithify.datasets.slatedb.model import Codec
from lithify.datasets.slatedb.planning.tiered import TieredPolicy, parse_scheduler_options
from lithify.datasets.slatedb.planning.timeline import SegmentTimes
from lithify.datasets.slatedb.settings import SegmentSettings, SlatedbSettings
from lithify.planning.timeline.calendar import Calendar, Granularity

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class SlateOptions:
    """How compactions of this database are planned and written."""

    policy: TieredPolicy = field(default_factory=TieredPolicy)
    segment_times: SegmentTimes | None = None
    """For segments that are buckets of time: each is merged once, after its time is over."""
    l0_max_ssts: int = 8
    """The writer's limit, at which it stalls."""
    checkpoint_lifetime_s: int = 900
    enable_trivial_move: bool = False
    """Make sources that cannot show the same key one run without reading them. Their deleted and expired rows
    remain until they are merged."""
    max_sst_size: int = SstOptions().max_sst_size
    block_size: int | None = None
    """Bytes; `None` keeps the block size of the inputs."""
    compression: Codec | None = None
    """`None` keeps the codec of the newest input."""
    min_filter_keys: int = SstOptions().min_filter_keys
    filter_rules: FilterRules = field(default_factory=FilterRules)
    merge_operator: str | None = None
    compaction_filter: str | None = None

    def __post_init__(self) -> None:
        """Raise `Refused` for options that no task could carry out, before anything is written."""
        if self.block_size is not None:
            _check_block_size(self.block_size)
        _check_filters(self.filter_rules)
        if self.max_sst_size < 1:
            raise Refused(f"max_sst_size is {self.max_sst_size} bytes; it must be at least 1")
        if self.merge_operator is not None:
            load_merge_operator(self.merge_operator)
        if self.compaction_filter is not None:
            load_function(self.compaction_filter, "compaction filter")


def _check_block_size(block_size: int) -> None:
    from lithify.datasets.slatedb.format.block_size import (
        BLOCK_SIZES,  # imports the compiler, which few commands need
    )

    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise Refused(f"a block size of {block_size} bytes does not exist in SlateDB; use one of {sizes}")


def _check_filters(rules: FilterRules) -> None:
    if rules.names:
        from lithify.datasets.slatedb.format.policies import (
            policy_of,  # imports the compiler, which few commands need
        )

        for name in rules.names:
            policy_of(name, rules.prefix_lens)


def slate_options(settings: SlatedbSettings) -> SlateOptions:
    """Return the options of these settings. Raise `Refused` if one has no meaning."""
    codec = settings.compression_codec
    if codec is not None and codec.upper() not in Codec.__members__:
        raise Refused(f"unknown compression {codec!r}; use one of {', '.join(Codec.__members__).lower()}")
    parsed = parse_scheduler_options(
        settings.scheduler_options,
        TieredPolicy(max_concurrent_compactions=settings.max_concurrent_compactions),
    )
    for warning in parsed.warnings:
        _log.warning("%s", warning)
    return SlateOptions(
        policy=parsed.policy,
        segment_times=_segment_times(settings.segments),
        l0_max_ssts=settings.l0_max_ssts,
        checkpoint_lifetime_s=round(settings.checkpoint_lifetime.total_seconds()),
        enable_trivial_move=settings.enable_trivial_move,
        max_sst_size=int(settings.max_sst_size),
        block_size=None if settings.block_size is None else int(settings.block_size),
        compression=Codec[codec.upper()] if codec is not None else None,
        min_filter_keys=settings.min_filter_keys,
        filter_rules=FilterRules(
            _names_in(settings.filter_policies),
            settings.filter_bits_per_key,
            settings.filter_prefixes,
        ),
        merge_operator=settings.merge_operator,
        compaction_filter=settings.compaction_filter,
    )


def _names_in(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return () if text.strip() == "none" else tuple(filter(None, map(str.strip, text.split(","))))


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
