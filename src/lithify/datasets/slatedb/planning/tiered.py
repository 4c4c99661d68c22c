"""Size-tiered planning of LSM trees: the choices of SlateDB's built-in scheduler, with reasons.

Input is a small neutral value for each tree (sizes of its L0 SSTs and sorted runs) and the work in progress;
output is what to compact, and the reason for each tree without a proposal.

1. Count the slots in use, and find the first run id that no tree and no active work has.
2. For each tree record which sources active work already uses, and how many runs it will have afterwards.
3. Visit the trees by L0 count, largest first, and take at most one pick from each in a round. Stop when all
   slots are taken or a round finds nothing. Each pick counts as active work from then on.
4. A pick is the first of these that is possible:
   a. *L0*: at least `min_compaction_sources` L0 SSTs. All are taken, but no more than the oldest
      `max_compaction_sources`. They become a new run.
   b. *Runs of similar size*: from each run on, newest first, collect older ones while each is at most
      `include_size_threshold` times the smallest before it. `min_compaction_sources` of them are enough;
      the oldest `max_compaction_sources` are merged into the oldest one's place.
   c. *Consolidation*: while more than `sorted_run_consolidation_threshold` runs remain, neighbours are
      merged whatever their sizes, as few as needed.
5. *Backpressure*: a merge is refused while its result would be of similar size to the next older run and a
   full group (`max_compaction_sources`) of similar runs already waits there. A held group does not count as
   waiting: otherwise it would stall the writer.
6. *Held* sources are skipped by every pick, as if active work used them, but take no slot.

Invariants: proposals never share a source or a destination, with each other or with active work; L0 sources
are always the oldest of their tree; run sources are consecutive; a new run's id is above every id in every
tree; equal input gives equal output.

Two deliberate differences, where SlateDB would never stop or would crash: a single run is never merged with
itself, and an option of zero sources is ignored with a warning.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rich.filesize import decimal

from lithify.base.errors import Refused

MAX_RUN_ID = (1 << 32) - 1
_MAX_U64 = (1 << 64) - 1
_INTEGER = re.compile(r"\+?[0-9]+")
_FLOAT = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan)", re.IGNORECASE)
_LARGEST_F32 = float.fromhex("0x1.fffffep127")


@dataclass(frozen=True, slots=True)
class TieredPolicy:
    """The scheduler's options. Names and defaults are SlateDB's."""

    min_compaction_sources: int = 4
    max_compaction_sources: int = 8
    include_size_threshold: float = 4.0
    """Rounded to a 32-bit float, as in SlateDB."""
    sorted_run_consolidation_threshold: int = 0
    """0 is off, otherwise at least 2."""
    max_concurrent_compactions: int = 4

    def __post_init__(self) -> None:
        for name in ("min_compaction_sources", "max_compaction_sources", "max_concurrent_compactions"):
            if getattr(self, name) < 1:
                raise Refused(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.include_size_threshold >= 0:
            raise Refused(f"include_size_threshold is {self.include_size_threshold}; it must not be negative")
        if self.sorted_run_consolidation_threshold < 0 or self.sorted_run_consolidation_threshold == 1:
            raise Refused(
                f"sorted_run_consolidation_threshold is {self.sorted_run_consolidation_threshold}; "
                "it must be 0 (off) or at least 2"
            )


@dataclass(frozen=True, slots=True)
class L0:
    """An L0 SST, by the id of its view."""

    id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TieredRun:
    """A sorted run."""

    id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TieredTree:
    """One LSM tree: its L0 newest first, its runs in strictly descending id (newest first)."""

    key: bytes
    l0: tuple[L0, ...] = ()
    runs: tuple[TieredRun, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveWork:
    """A compaction in progress on the tree `key`."""

    key: bytes
    l0_ids: frozenset[str] = frozenset()
    run_ids: frozenset[int] = frozenset()
    destination: int | None = None
    """The run that the work will make; a drain makes none."""
    takes_slot: bool = True
    """False once only the commit is missing."""


@dataclass(frozen=True, slots=True)
class HeldSources:
    """The held sources of a tree, each with the reason as a sentence. They take no slot, and other sources
    are proposed instead."""

    l0: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[int, str] = field(default_factory=dict)

    def reason(self, l0_ids: Iterable[str], run_ids: Iterable[int]) -> str | None:
        """Return why nothing with these sources is proposed, or `None`."""
        reasons = (*map(self.l0.get, l0_ids), *map(self.runs.get, run_ids))
        return next((reason for reason in reasons if reason is not None), None)


_NOTHING_HELD = HeldSources()


@dataclass(frozen=True, slots=True)
class TieredProposal:
    """A proposal to merge these sources of the tree `key` into the run `destination`."""

    key: bytes
    l0_ids: tuple[str, ...]
    """Newest first."""
    run_ids: tuple[int, ...]
    """Newest first."""
    destination: int
    priority: float
    """0 (may wait) to 1 (urgent): L0 from 0.5 up, as a long L0 list stalls the writer; runs below."""
    cost_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unpicked:
    """A tree for which nothing is proposed, or less than could be, and the reason."""

    key: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class TieredPlan:
    """Proposals in the order they were picked, and the trees without one."""

    proposals: tuple[TieredProposal, ...] = ()
    unpicked: tuple[Unpicked, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """A policy, and warnings about the options that were ignored."""

    policy: TieredPolicy
    warnings: tuple[str, ...] = ()


def parse_scheduler_options(options: Mapping[str, str], base: TieredPolicy | None = None) -> ParsedOptions:
    """Return `base` (the defaults) with SlateDB's `scheduler_options` applied. As in SlateDB, a value that
    does not parse and an unknown name are ignored; each gives a warning."""
    policy = base if base is not None else TieredPolicy()
    warnings: list[str] = []
    for name, text in options.items():
        try:
            policy = _with_option(policy, name, text)
        except ValueError as problem:
            warnings.append(f"scheduler option {name}={text!r} is ignored: {problem}")
        except Refused as problem:
            warnings.append(f"scheduler option {name}={text!r} is ignored: {problem}")
            if name == "sorted_run_consolidation_threshold":
                policy = replace(policy, sorted_run_consolidation_threshold=0)
    return ParsedOptions(policy, tuple(warnings))


def _with_option(policy: TieredPolicy, name: str, text: str) -> TieredPolicy:
    match name:
        case "min_compaction_sources":
            return replace(policy, min_compaction_sources=_parse_count(text))
        case "max_compaction_sources":
            return replace(policy, max_compaction_sources=_parse_count(text))
        case "sorted_run_consolidation_threshold":
            return replace(policy, sorted_run_consolidation_threshold=_parse_count(text))
        case "include_size_threshold":
            if not _FLOAT.fullmatch(text):
                raise ValueError("not a number")
            return replace(policy, include_size_threshold=float(text))
        case _:
            raise ValueError("there is no such option")


def _parse_count(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) > _MAX_U64:
        raise ValueError("not a whole number")
    return int(text)


def plan(
    trees: Sequence[TieredTree],
    active: Iterable[ActiveWork],
    policy: TieredPolicy,
    first_free_id: int | None = None,
    held: Mapping[bytes, HeldSources] = MappingProxyType({}),
) -> TieredPlan:
    """Return what to compact now. `trees` start with the root. If they are not all trees of the database, the
    caller passes the free run id (`next_run_id` of all of them). `held` is by key of the tree."""
    active = tuple(active)
    states = [_TreeState.of(tree, active, policy, held.get(tree.key, _NOTHING_HELD)) for tree in trees]
    states.sort(key=lambda state: len(state.shape.l0), reverse=True)
    free_slots = policy.max_concurrent_compactions - sum(work.takes_slot for work in active)
    next_id = first_free_id if first_free_id is not None else next_run_id(trees, active)
    proposals: list[TieredProposal] = []
    picked_any = True
    while picked_any:
        picked_any = False
        for state in states:
            if len(proposals) >= free_slots:
                break
            pick = state.pick(next_id)
            if isinstance(pick, TieredProposal):
                state.add(pick)
                proposals.append(pick)
                next_id = max(next_id, pick.destination + 1)
                picked_any = True
    return TieredPlan(tuple(proposals), _unpicked(trees, states, proposals, next_id, policy))


def l0_priority(l0_count: int, policy: TieredPolicy) -> float:
    """Return the urgency of compacting L0 SSTs of a tree with this many."""
    return 0.5 + 0.5 * min(1.0, l0_count / policy.max_compaction_sources)


def runs_priority(run_count: int, policy: TieredPolicy) -> float:
    """Return the urgency of merging runs of a tree with this many."""
    return 0.5 * _fullness(run_count, policy)


def _fullness(run_count: int, policy: TieredPolicy) -> float:
    return min(1.0, run_count / (2 * policy.max_compaction_sources))


def full_compaction(
    tree: TieredTree, active: Iterable[ActiveWork], next_id: int, held: HeldSources = _NOTHING_HELD
) -> TieredProposal | str:
    """Return the merge of all L0 SSTs and all runs of the tree into one run, or why it is not possible now.

    A tree that consists of one run can be rewritten too; the caller decides whether that gains anything.
    """
    if not tree.l0 and not tree.runs:
        return "empty"
    if any(work.key == tree.key for work in active):
        return "waits for the compaction in progress"
    reason = held.reason((sst.id for sst in tree.l0), (run.id for run in tree.runs))
    if reason is not None:
        return reason
    destination = min((run.id for run in tree.runs), default=next_id)
    if destination > MAX_RUN_ID:
        return _IDS_EXHAUSTED
    cost_bytes = _total(tree.l0) + _total(tree.runs)
    if tree.l0:
        parts = [_count(tree.l0, "L0 SST"), *([_count(tree.runs, "sorted run")] if tree.runs else [])]
        what = f"{' and '.join(parts)} into one run"
    else:
        what = f"{_count(tree.runs, 'sorted run')} {'into one' if len(tree.runs) > 1 else 'rewritten'}"
    return TieredProposal(
        tree.key,
        tuple(sst.id for sst in tree.l0),
        tuple(run.id for run in tree.runs),
        destination,
        priority=0.5,
        cost_bytes=cost_bytes,
        reason=f"full compaction: {what} ({decimal(cost_bytes)})",
    )


def next_run_id(trees: Iterable[TieredTree], active: Iterable[ActiveWork]) -> int:
    """Return the first run id above all that exist or are being made, in all trees."""
    committed = [run.id for tree in trees for run in tree.runs]
    coming = [work.destination for work in active if work.destination is not None]
    return max([*committed, *coming], default=-1) + 1


_IDS_EXHAUSTED = (
    f"the run ids are used up (the highest is {MAX_RUN_ID}); a full compaction of every segment frees them"
)


@dataclass(slots=True)
class _TreeState:
    """A tree, and which of its parts active work and the picks so far use."""

    shape: TieredTree
    policy: TieredPolicy
    threshold: float
    held: HeldSources = _NOTHING_HELD
    used_l0: set[str] = field(default_factory=set)
    used_runs: set[int] = field(default_factory=set)
    projected_runs: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls, tree: TieredTree, active: Iterable[ActiveWork], policy: TieredPolicy, held: HeldSources
    ) -> _TreeState:
        state = cls(tree, policy, _f32(policy.include_size_threshold), held)
        state.projected_runs = {run.id for run in tree.runs}
        for work in active:
            if work.key == tree.key:
                state._use(work.l0_ids, work.run_ids, work.destination)
        return state

    def add(self, pick: TieredProposal) -> None:
        self._use(pick.l0_ids, pick.run_ids, pick.destination)

    def pick(self, next_id: int) -> TieredProposal | str:
        """Return what to compact next in this tree, or why nothing."""
        if not self.shape.l0 and not self.shape.runs:
            return "empty"
        l0 = self._pick_l0(next_id)
        if isinstance(l0, TieredProposal):
            return l0
        similar = self._pick_similar_runs()
        if isinstance(similar, TieredProposal):
            return similar
        return self._pick_consolidation() or f"{l0}; {similar}"

    def why_held(self, next_id: int) -> str | None:
        """Return why the next pick differs from the pick without holds."""
        pick = replace(self, held=_NOTHING_HELD).pick(next_id)
        return self.held.reason(pick.l0_ids, pick.run_ids) if isinstance(pick, TieredProposal) else None

    def _use(self, l0_ids: Iterable[str], run_ids: Iterable[int], destination: int | None) -> None:
        self.used_l0.update(l0_ids)
        self.used_runs.update(run_ids)
        self.projected_runs.difference_update(run_ids)
        if destination is not None:
            self.used_runs.add(destination)
            self.projected_runs.add(destination)

    def _pick_l0(self, next_id: int) -> TieredProposal | str:
        policy, available = self.policy, self.shape.l0
        text = _count(available, "L0 SST")
        if len(available) < policy.min_compaction_sources:
            return f"{text}, fewer than min_compaction_sources {policy.min_compaction_sources}"
        sources = available[-policy.max_compaction_sources :]
        if any(sst.id in self.used_l0 for sst in sources):
            return f"{text}, the oldest of them already being compacted"
        if any(sst.id in self.held.l0 for sst in sources):
            return f"{text}, the oldest of them left alone"
        size_bytes = _total(sources)
        if self._is_held_back(size_bytes, next_older=0):
            return f"{text}, held back until the similar runs below are merged"
        if next_id > MAX_RUN_ID:
            return f"{text}, but {_IDS_EXHAUSTED}"
        reason = (
            f"{text} ({decimal(_total(available))}) reached "
            f"min_compaction_sources {policy.min_compaction_sources}"
        )
        if len(sources) < len(available):
            reason += f"; only the oldest {len(sources)} are merged (max_compaction_sources)"
        return TieredProposal(
            self.shape.key,
            tuple(sst.id for sst in sources),
            (),
            next_id,
            priority=l0_priority(len(available), policy),
            cost_bytes=size_bytes,
            reason=reason,
        )

    def _pick_similar_runs(self) -> TieredProposal | str:
        policy, runs = self.policy, self.shape.runs
        if len(runs) < policy.min_compaction_sources:
            text = _count(runs, "sorted run")
            return f"{text}, fewer than min_compaction_sources {policy.min_compaction_sources}"
        longest = 0
        for start in range(len(runs)):
            group = self._group(start, by_size=True, limit=len(runs))
            longest = max(longest, len(group))
            taken = group[-policy.max_compaction_sources :]
            if len(group) >= policy.min_compaction_sources and len(taken) > 1:
                return self._merge(
                    taken,
                    f"{len(group)} sorted runs of similar size ({_sizes(group)}) reached "
                    f"min_compaction_sources {policy.min_compaction_sources}",
                    weight=0.5,
                )
        busy = sum(run.id in self.used_runs for run in runs)
        return (
            f"{_count(runs, 'sorted run')}, at most {longest} neighbours free and of similar size "
            f"({max(2, policy.min_compaction_sources)} needed)"
            + (f", {busy} being compacted" if busy else "")
        )

    def _pick_consolidation(self) -> TieredProposal | None:
        policy, projected = self.policy, len(self.projected_runs)
        threshold = policy.sorted_run_consolidation_threshold
        if threshold == 0 or projected <= threshold or policy.max_compaction_sources < 2:
            return None
        limit = min(policy.max_compaction_sources, projected - threshold + 1)
        for start in range(len(self.shape.runs)):
            group = self._group(start, by_size=False, limit=limit)
            if len(group) > 1:
                return self._merge(
                    group,
                    f"{projected} sorted runs, more than sorted_run_consolidation_threshold {threshold}: "
                    f"{len(group)} neighbours ({_sizes(group)}) are merged regardless of their sizes",
                    weight=0.25,
                )
        return None

    def _merge(self, runs: Sequence[TieredRun], reason: str, weight: float) -> TieredProposal:
        return TieredProposal(
            self.shape.key,
            (),
            tuple(run.id for run in runs),
            runs[-1].id,
            priority=weight * _fullness(len(self.shape.runs), self.policy),
            cost_bytes=_total(runs),
            reason=reason,
        )

    def _group(self, start: int, *, by_size: bool, limit: int) -> Sequence[TieredRun]:
        """Return consecutive free runs from `start` that may be merged, at most `limit`."""
        size_bytes, smallest = 0, _MAX_U64
        end = start
        for run in self.shape.runs[start : start + limit]:
            if by_size and end > start and run.size_bytes > self._similar(smallest):
                break
            smallest = min(smallest, run.size_bytes)
            size_bytes += run.size_bytes
            if run.id in self.used_runs or run.id in self.held.runs:
                break
            if self._is_held_back(size_bytes, next_older=end + 1):
                break
            end += 1
        return self.shape.runs[start:end]

    def _is_held_back(self, size_bytes: int, next_older: int) -> bool:
        """Return whether backpressure applies: the result would join a full group that waits at
        `next_older`."""
        runs = self.shape.runs
        if next_older >= len(runs) or runs[next_older].size_bytes > self._similar(size_bytes):
            return False
        waiting, smallest = 0, _MAX_U64
        for run in runs[next_older : next_older + self.policy.max_compaction_sources]:
            if run.id in self.held.runs or (waiting and run.size_bytes > self._similar(smallest)):
                break
            smallest = min(smallest, run.size_bytes)
            waiting += 1
        return waiting >= self.policy.max_compaction_sources

    def _similar(self, size_bytes: int) -> int:
        """Return the largest size that still counts as similar to `size_bytes`, in 32-bit arithmetic."""
        product = _f32(_f32(size_bytes) * self.threshold)
        if math.isnan(product):
            return 0
        return _MAX_U64 if product >= _MAX_U64 else int(product)


def _unpicked(
    trees: Sequence[TieredTree],
    states: Sequence[_TreeState],
    proposals: Sequence[TieredProposal],
    next_id: int,
    policy: TieredPolicy,
) -> tuple[Unpicked, ...]:
    picked = {proposal.key for proposal in proposals}
    by_key = {state.shape.key: state for state in states}
    notes = []
    for tree in trees:
        why_held = by_key[tree.key].why_held(next_id)
        if why_held is not None:
            notes.append(Unpicked(tree.key, why_held))
            continue
        if tree.key in picked:
            continue
        pick = by_key[tree.key].pick(next_id)
        if isinstance(pick, TieredProposal):
            limit = policy.max_concurrent_compactions
            pick = f"{pick.reason}, but max_concurrent_compactions {limit} is used up"
        notes.append(Unpicked(tree.key, pick))
    return tuple(notes)


def _f32(value: float) -> float:
    """Return `value` rounded to a 32-bit float; too large ones become infinite."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf if value > _LARGEST_F32 else -math.inf
    return rounded


def _total(sources: Iterable[L0 | TieredRun]) -> int:
    return sum(source.size_bytes for source in sources)


def _count(items: Sequence[object], noun: str) -> str:
    if not items:
        return f"no {noun}s"
    return f"{len(items)} {noun}" + ("s" if len(items) > 1 else "")


def _sizes(runs: Sequence[TieredRun]) -> str:
    smallest, largest = min(run.size_bytes for run in runs), max(run.size_bytes for run in runs)
    return decimal(smallest) if smallest == largest else f"{decimal(smallest)} to {decimal(largest)}"
