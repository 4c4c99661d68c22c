"""What may be set for the compactions of a SlateDB database; names are SlateDB's where it has the option."""

from __future__ import annotations

from dataclasses import dataclass, field

from lithify.datasets.slatedb.hooks import load_compaction_filter, load_merge_operator
from lithify.datasets.slatedb.model import Codec
from lithify.datasets.slatedb.plan import TieredPolicy
from lithify.datasets.slatedb.task import SstOptions
from lithify.datasets.slatedb.timeline import SegmentTimes
from lithify.errors import Refused


@dataclass(frozen=True, slots=True)
class SlateOptions:
    """How compactions of this database are planned and written."""

    policy: TieredPolicy = field(default_factory=TieredPolicy)
    segment_times: SegmentTimes | None = None
    """Where segments are buckets of time: merge each once, when it is over."""
    l0_max_ssts: int = 8
    """The writer's limit, at which it stalls."""
    checkpoint_lifetime_s: int = 900
    enable_trivial_move: bool = False
    """Make sources that cannot show the same key one run without reading them. What could go from them
    (deleted and expired rows) stays until they are merged."""
    max_sst_size: int = SstOptions().max_sst_size
    block_size: int | None = None
    """Bytes; `None` keeps the size the inputs were written with."""
    compression: Codec | None = None
    """`None` keeps the codec of the newest input."""
    min_filter_keys: int = SstOptions().min_filter_keys
    merge_operator: str | None = None
    compaction_filter: str | None = None

    def __post_init__(self) -> None:
        """`Refused` for what no task could carry out, before anything is written."""
        if self.block_size is not None:
            _check_block_size(self.block_size)
        if self.max_sst_size < 1:
            raise Refused(f"max_sst_size is {self.max_sst_size} bytes; it must be at least 1")
        if self.merge_operator is not None:
            load_merge_operator(self.merge_operator)
        if self.compaction_filter is not None:
            load_compaction_filter(self.compaction_filter)


def _check_block_size(block_size: int) -> None:
    from lithify.datasets.slatedb.split import BLOCK_SIZES  # with the compiler, which few commands need

    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise Refused(f"a block size of {block_size} bytes does not exist in SlateDB; use one of {sizes}")
