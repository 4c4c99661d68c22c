"""Segments that are buckets of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.compaction.transform import apply_compaction
from lithify.datasets.slatedb.compaction.validate import validate
from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.model import Manifest, TieredSpec, Tree
from lithify.datasets.slatedb.planning.plan import TieredPolicy, source_names
from lithify.datasets.slatedb.planning.timeline import SegmentTimes, plan_segments, propose_by_time
from lithify.planning.timeline.calendar import MAX_US, Calendar, Granularity
from lithify.planning.timeline.model import DeletesStatus
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.proposal import Plan
from lithify.testing import ManualClock, MemoryStore
from tests.datasets.slatedb.trees import MB, Mint, manifest_of, tiered

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
M = Mint()
P = TieredPolicy()
DAYS = SegmentTimes("%Y-%m-%d/", skip_clock_us=None)
NOW_MS = 1_714_564_800_000
"""2024-05-01 12:00 UTC."""


def segment(day: str, l0: int | Sequence[int] = 0, runs: dict[int, int] | None = None) -> Tree:
    return M.tree(l0, runs, f"2024-{day}/".encode())


HOT = segment("05-01", 5, {1: MB})
QUIET = segment("04-30", 1, {2: 40 * MB})
FRAGMENTED = segment("04-29", 3, {6: MB, 5: MB, 4: 9 * MB})
LEFT = segment("04-28", 2)
DONE = segment("04-27", 0, {3: 900 * MB})
DATABASE = manifest_of(HOT, QUIET, FRAGMENTED, LEFT, DONE)


def proposed(
    manifest: Manifest,
    times: SegmentTimes = DAYS,
    policy: TieredPolicy = P,
    ledger: SlateLedger | None = None,
) -> Plan:
    return propose_by_time(manifest, ledger if ledger is not None else Ledger(), policy, times, NOW_MS)


def specs(plan: Plan) -> list[TieredSpec]:
    return [proposal.spec for proposal in plan.proposals]


def full(tree: Tree, destination: int) -> TieredSpec:
    return tiered(tree, slice(None), [run.id for run in tree.runs], destination)


def test_old_segments_become_one_run_and_the_newest_is_compacted_by_size() -> None:
    plan = proposed(DATABASE)
    assert specs(plan) == [
        tiered(HOT, slice(None), (), 7),
        full(FRAGMENTED, 4),
        full(LEFT, 8),
    ]
    assert [proposal.priority for proposal in plan.proposals] == sorted(
        (proposal.priority for proposal in plan.proposals), reverse=True
    )
    assert "no longer written" in plan.proposals[1].reason
    assert plan.notes == (
        "segment 323032342d30352d30312f: too close to the newest data (skip_newest); "
        "compacted by size until then",
        "2 segment(s) need no compaction",
    )


def test_stable_segments_are_never_touched_again() -> None:
    """Also where sizes alone would merge them."""
    done = [segment(f"04-{day:02}", 0, {day: MB}) for day in range(1, 20)]
    assert specs(proposed(manifest_of(*done, segment("05-01", 1)))) == []


def test_running_the_plan_to_its_end_leaves_nothing() -> None:
    manifest = DATABASE
    for _ in range(3):
        for proposal in proposed(manifest).proposals:
            compaction = M.compaction(proposal.spec)
            assert validate(compaction, manifest, Ledger()) is None
            prefix = proposal.spec.segment
            output = M.sst(proposal.cost_bytes, prefix + b"a", prefix + b"z")
            manifest = apply_compaction(manifest, proposal.spec, [output])
    plan = proposed(manifest)
    assert specs(plan) == []
    assert [len(tree.runs) + len(tree.l0) for tree in manifest.segments[:3]] == [1, 1, 1]


def test_late_data_is_merged_once_it_is_worth_it() -> None:
    hot = segment("05-01", 1)

    def is_merged(late: Sequence[int]) -> bool:
        return bool(specs(proposed(manifest_of(segment("04-01", late, {1: 160 * MB}), hot))))

    assert not is_merged([9 * MB])
    assert is_merged([10 * MB])
    assert is_merged([1, 1, 1])
    assert is_merged([16 * 161 * MB]), "what came late may be larger than what was there"


@pytest.mark.parametrize(
    ("times", "held"),
    [
        pytest.param(DAYS, ["05-01"], id="the newest"),
        pytest.param(replace(DAYS, skip_newest_us=DAY_US), ["04-30", "05-01"], id="and the one before"),
        pytest.param(replace(DAYS, skip_newest_us=None, skip_clock_us=0), ["05-01"], id="by the clock"),
        pytest.param(SegmentTimes("%Y-%m-%d/"), ["05-01"], id="by both, as it is by itself"),
        pytest.param(replace(DAYS, skip_newest_us=None), [], id="none"),
    ],
)
def test_skip_offsets(times: SegmentTimes, held: list[str]) -> None:
    plan = plan_segments(DATABASE, Ledger(), P, times, NOW_MS)
    found = [bytes.fromhex(c.chunk.key.group) for c in plan.chunks if c.held is not None]
    assert found == [f"2024-{day}/".encode() for day in held]


def test_the_newest_of_an_old_database_is_held_too_and_the_future_is_no_matter() -> None:
    plan = plan_segments(
        manifest_of(segment("04-01", 3), segment("04-02", 3), segment("06-01", 3)), Ledger(), P, DAYS, NOW_MS
    )
    assert [c.held is not None for c in plan.chunks] == [False, True, True]


def test_slots_are_shared_by_priority() -> None:
    one = replace(P, max_concurrent_compactions=1)
    assert specs(proposed(DATABASE, policy=one)) == [tiered(HOT, slice(None), (), 7)]
    active = M.compaction(full(FRAGMENTED, 4), CompactionState.RUNNING)
    assert specs(proposed(DATABASE, policy=one, ledger=Ledger(0, (active,)))) == []


def test_a_segment_in_work_is_not_proposed_again() -> None:
    active = M.compaction(full(FRAGMENTED, 4), CompactionState.RUNNING)
    ledger: SlateLedger = Ledger(0, (active,))
    assert specs(proposed(DATABASE, ledger=ledger)) == [tiered(HOT, slice(None), (), 7), full(LEFT, 8)]
    plan = plan_segments(DATABASE, ledger, P, DAYS, NOW_MS)
    assert {c.task for c in plan.chunks if c.status is DeletesStatus.AWAITING} >= {
        "segment 323032342d30342d32392f",
    }


def test_other_segments_are_compacted_by_size() -> None:
    other = M.tree(4, {}, b"users/")
    plan = proposed(manifest_of(other, DONE, HOT))
    assert tiered(other, slice(None), (), 5) in specs(plan)
    assert any("1 segment(s) do not match the pattern %Y-%m-%d/" in note for note in plan.notes)


def test_run_ids_are_unique() -> None:
    trees = [segment(f"04-{day:02}", 2) for day in range(1, 9)]
    policy = replace(P, max_concurrent_compactions=99)
    plan = proposed(manifest_of(*trees, M.tree(4, {}, b"a/"), M.tree(4, {}, b"b/"), HOT), policy=policy)
    ids = [spec.destination for spec in specs(plan)]
    assert len(ids) == len(set(ids)) == 10 + 1


@pytest.mark.parametrize(
    ("pattern", "prefix", "granularity", "start_us"),
    [
        ("%Y-%m-%d/", b"2024-05-01/", "day", 1_714_521_600_000_000),
        ("logs/%Y%m%d%H", b"logs/2024050113", "hour", 1_714_568_400_000_000),
        ("%Y-%m", b"2024-05", "month", 1_714_521_600_000_000),
        ("%s", b"x", "day", None),
        ("%Y-%m-%d/", b"2024-13-01/", "day", None),
        ("%Y-%m-%d/", b"2024-05-01/x", "day", None),
        ("%Y-%m-%d/", b"\xff", "day", None),
        ("%Y-%m-%dT%H%z", b"2024-05-01T02+0200", "day", 1_714_521_600_000_000),
        ("{u64:ms}", (1_714_564_800_000).to_bytes(8, "big"), "day", 1_714_521_600_000_000),
        ("e/{u32:hour}", b"e/" + (476_268).to_bytes(4, "big"), "hour", 476_268 * HOUR_US),
        ("e/{u32:hour}", b"f/" + (476_268).to_bytes(4, "big"), "hour", None),
        ("{u32:day}", b"\0\0\0", "day", None),
        ("{u64:day}", b"\xff" * 8, "day", None),
        ("{u64:us}", b"\xff" * 8, "day", None),
    ],
)
def test_the_time_of_a_prefix(pattern: str, prefix: bytes, granularity: str, start_us: int | None) -> None:
    interval = SegmentTimes(pattern, Calendar(Granularity(granularity))).interval(prefix)
    assert (interval.start_us if interval is not None else None) == start_us
    assert interval is None or interval.end_us < MAX_US


def test_text_is_read_in_the_time_zone() -> None:
    interval = SegmentTimes("%Y-%m-%d", Calendar(zone="Europe/Berlin")).interval(b"2024-05-01")
    assert interval is not None
    assert interval.start_us == 1_714_521_600_000_000 - 2 * HOUR_US
    assert interval.end_us - interval.start_us == DAY_US


@pytest.mark.parametrize("pattern", ["", "events/", "{u16:s}", "{u64:ms}/x", "%Y-{u64:ms}x"])
def test_patterns_that_tell_no_time_are_refused(pattern: str) -> None:
    with pytest.raises(Refused, match="contains no time"):
        SegmentTimes(pattern)


def test_a_dataset_with_segment_times_plans_by_time() -> None:
    clock = ManualClock(NOW_MS)
    options = SlateOptions(segment_times=DAYS)
    dataset = SlateDataset(MemoryStore(clock), "db", clock, RandomIds(), options=options)
    assert dataset.propose(DATABASE, Ledger()) == proposed(DATABASE)
    assert dataset.planner()(DATABASE, Ledger()) == proposed(DATABASE)
    by_size = dataset.planner(segment=FRAGMENTED.prefix)(DATABASE, Ledger())
    assert specs(by_size) == []


def test_what_is_held_makes_room_for_others() -> None:
    """One slot, and the most urgent segment is to be left alone."""
    policy = replace(P, max_concurrent_compactions=1)
    (first,) = specs(proposed(DATABASE, policy=policy))
    names = _names(first)
    plan = propose_by_time(DATABASE, Ledger(), policy, DAYS, NOW_MS, {names[0]: "it failed"})
    (second,) = specs(plan)
    assert second.segment != first.segment
    assert "it failed" in plan.notes
    all_held = {name: "it failed" for spec in specs(proposed(DATABASE)) for name in _names(spec)}
    plan = propose_by_time(DATABASE, Ledger(), P, DAYS, NOW_MS, all_held)
    assert not plan.proposals
    assert plan.notes.count("it failed") == len(proposed(DATABASE).proposals)


def _names(spec: TieredSpec) -> tuple[str, ...]:
    return source_names(spec.segment, spec.l0_view_ids, spec.sorted_runs)
