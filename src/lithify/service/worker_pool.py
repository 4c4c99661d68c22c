"""The workers of a process: one for each dataset that may have work, sharing worker slots and taking turns.

A *work source* names the datasets that may have work: a list of URLs, or the hints of a queue. Each round:

1. Newly named datasets join. Datasets no longer named claim nothing, and leave once nothing of theirs runs
   here.
2. Every dataset is polled: opened if necessary, then steps 1 to 4 of its worker (`lithify.service.worker`).
   So all slots that became free in this round are known before the first claim.
3. While there are free slots, the dataset whose turn it is claims one compaction: the most urgent first, with
   ageing by claims (`lithify.planning.turns`).
4. A dataset whose poll or claim raises an error, expected or not, is *quarantined*: the pool backs off from
   it, longer after each failed round in a row, then retries. This is reported once. While compactions of it
   run here, the pause is at most a heartbeat interval, so that a short outage of a store loses none.
5. A dataset that was recreated at its URL or restored from a backup (`Replaced`) is a different one: running
   compactions of the old one are dropped, and it is reopened in the next round.
6. A dataset whose store is *away* is neither of these: nothing is wrong with the dataset, no operator has to
   act, and the store's own events report the outage. It is polled again after some seconds, for as long as it
   takes. This costs the other datasets little: once a store is away, requests to it fail at
   once (`lithify.store.resilience.waiting`); only the first one is waited for, a few seconds.

Invariants:

- Of N datasets with something to claim, each gets a claim after at most `AGEING_TURNS` + N - 1 claims of
  the others, however hot or urgent these are.
- A failing dataset costs the others only the time of its polls, which become rare.
- Only an interrupt, an error of all datasets at the start, and an engine that has failed for good
  (`EngineDown`, left to a supervisor) end the rounds. An unreachable master is noticed before the first
  claim.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import Protocol

from lithify.base import events
from lithify.base.backoff import Backoff, GrowingPause
from lithify.base.clock import Clock, monotonic_ms
from lithify.base.defects import contained
from lithify.base.errors import DatasetNotFound, LithifyError, Refused, Replaced, StoreUnavailable
from lithify.base.events import Observer
from lithify.base.ids import Ulid
from lithify.planning.turns import Turns
from lithify.protocol.finding import Finding, problem
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker

_log = logging.getLogger("lithify")

QUARANTINE_PAUSE = GrowingPause(first_ms=1_000, max_ms=300_000)
MAX_FAILURES = 1_000
"""Number of failures kept for `take_failures`."""


class WorkSource(Protocol):
    """A source of datasets that may have work for a pool."""

    def urls(self) -> Iterable[str]:
        """Return their URLs now, each once. Called in every round, so it must be fast."""
        ...


@dataclass(frozen=True, slots=True)
class UrlList:
    """A fixed list of datasets."""

    listed: Sequence[str]

    def urls(self) -> Sequence[str]:
        return self.listed


OpenWorker = Callable[[str, WorkerSlots], Worker]
"""Open the dataset at a URL and return a worker of it that uses these slots."""


@dataclass(slots=True, eq=False)
class _Member:
    """A dataset of the pool."""

    url: str
    """As the source names it; the dataset itself may write its URL differently."""
    worker: Worker | None = None
    """`None` until the dataset could be opened."""
    backoff: Backoff = field(default_factory=lambda: Backoff(QUARANTINE_PAUSE))
    quarantined_as: str = ""
    """The URL under which its quarantine was first reported; empty if not reported."""
    is_named: bool = True
    """Whether the source names it now."""
    is_well: bool = False
    """Whether this round has had no error."""

    @property
    def holds(self) -> bool:
        return self.worker is not None and self.worker.is_busy

    @property
    def may_claim(self) -> bool:
        return self.is_named and self.is_well and self.worker is not None and self.worker.has_work


class WorkerPool:
    """A pool that works on all datasets that a source names; see the module."""

    def __init__(
        self,
        source: WorkSource,
        open_worker: OpenWorker,
        room: WorkerSlots,
        clock: Clock,
        *,
        heartbeat_interval_ms: int = 10_000,
        observer: Observer = events.ignore,
    ) -> None:
        self._source = source
        self._open_worker = open_worker
        self._room = room
        self._clock = clock
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._observe = observer
        self._members: dict[str, _Member] = {}
        self._order: deque[_Member] = deque()
        """The order of polling; each round begins with another member."""
        self._turns: Turns[str] = Turns()
        self._failures: deque[tuple[str, Ulid]] = deque(maxlen=MAX_FAILURES)

    @property
    def is_busy(self) -> bool:
        """Return whether any compaction is running here."""
        return any(member.holds for member in self._members.values())

    def start(self) -> None:
        """Open all datasets that can be opened. Raise `Refused` of any dataset at once, unless it merely does
        not exist yet. If none opens, raise the first error, unless a store is away, which may come back
        later."""
        self._room.check_master()
        self._follow_source()
        failed: list[tuple[_Member, LithifyError]] = []
        for member in self._order:
            try:
                self._open(member)
            except LithifyError as error:
                if isinstance(error, Refused) and not isinstance(error, DatasetNotFound):
                    raise
                failed.append((member, error))
        if failed and len(failed) == len(self._members):
            lasting = [why for _, why in failed if not isinstance(why, StoreUnavailable)]
            if len(lasting) == len(failed):
                raise lasting[0]
        for member, why in failed:
            self._quarantine(member, why)

    def round(self) -> bool:
        """Do one round of the algorithm above. Return whether any compaction changed its owner or was
        finished."""
        self._follow_source()
        changed = False
        for member in tuple(self._order):
            changed = self._look(member) or changed
        changed = self._claim() or changed
        for member in self._order:
            if member.is_well and member.backoff.error is not None:
                self._recover(member)
        self._order.rotate(-1)
        self._room.check_engine()
        return changed

    @property
    def held(self) -> int:
        """Return the number of compactions that are running here."""
        return self._room.held

    @property
    def slots(self) -> int:
        """Return the number of compactions that run at once without being spare and without sharing a
        slot."""
        return self._room.slots

    def holding(self) -> frozenset[tuple[str, Ulid]]:
        """Return the compactions that are running here, each with the URL of its dataset as the source or
        `claim` named it."""
        return frozenset(
            (m.url, held) for m in self._order if m.worker is not None for held in m.worker.holding
        )

    def take_failures(self) -> tuple[tuple[str, Ulid], ...]:
        """Return the compactions released since the last call because a range failed for good, at most the
        last `MAX_FAILURES`. Events have already reported them."""
        failures = tuple(self._failures)
        self._failures.clear()
        return failures

    def claim(
        self, url: str, compaction_id: Ulid, *, is_sharing: bool = False, is_untried: bool = False
    ) -> bool:
        """Claim exactly this compaction, if there is a free slot; return whether it runs here now. For
        callers that know from elsewhere what is claimable: the source need not name the dataset, and the pool
        forgets it when nothing of it runs. The caller is responsible for knowing that there is capacity for a
        compaction that shares a slot (`is_sharing`), and that no attempt at it has failed (`is_untried`)."""
        member = self._members.get(url)
        if member is None:
            member = self._members[url] = _Member(url, is_named=False)
            self._order.append(member)
        self._look(member)
        if not member.is_well:
            return False
        return self._claim_one(member, compaction_id, is_sharing=is_sharing, is_untried=is_untried)

    def forget(self, url: str) -> bool:
        """Forget this dataset, so that the next claim reopens it, perhaps with other options; return `False`
        if something of it runs here. Not for datasets that the source names."""
        member = self._members.get(url)
        if member is not None and member.holds:
            return False
        if member is not None:
            self._order.remove(member)
            del self._members[url]
        return True

    def wait(self, timeout_s: float) -> None:
        """Return when a running task ends, or after `timeout_s`. Quarantined datasets are not waited for,
        because their results would not be collected."""
        workers = [m.worker for m in self._order if m.worker is not None and m.backoff.error is None]
        pending = [future for worker in workers for future in worker.pending]
        if pending:
            wait(pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
        else:
            self._clock.sleep_s(timeout_s)

    def release(self) -> None:
        """Stop all tasks and release unfinished compactions."""
        for member in self._order:
            if member.worker is not None:
                release(member.worker)
        self._room.close()

    def findings(self) -> tuple[Finding, ...]:
        """Return the quarantined datasets, and why. Thread-safe."""
        now_ms = monotonic_ms(self._clock)
        return tuple(
            problem(
                "quarantine",
                f"{m.url} backs off for {max(0, m.backoff.failed_ms + self._pause_ms(m) - now_ms) // 1000} "
                f"more s after {m.backoff.rounds} failed rounds: {m.backoff.error}",
                "check the dataset: lithify doctor " + m.url,
            )
            for m in tuple(self._members.values())
            if m.backoff.error is not None
        )

    # Members

    def _follow_source(self) -> None:
        named = dict.fromkeys(self._source.urls())
        for url in named:
            if url not in self._members:
                self._members[url] = member = _Member(url)
                self._order.append(member)
        for member in self._order:
            member.is_named = member.url in named
        gone = [m for m in self._order if not m.is_named and not m.holds]
        for member in gone:
            self._order.remove(member)
            del self._members[member.url]
        if gone:
            self._turns.keep(self._members.keys())

    def _open(self, member: _Member) -> Worker:
        if member.worker is None:
            with contained(f"opening {member.url}"):
                member.worker = self._open_worker(member.url, self._room)
        return member.worker

    def _look(self, member: _Member) -> bool:
        member.is_well = False
        rested_ms = monotonic_ms(self._clock) - member.backoff.failed_ms
        if member.backoff.error is not None and rested_ms < self._pause_ms(member):
            return False
        try:
            with contained(f"a round over {member.url}"):
                worker = self._open(member)
                changed = worker.look()
                self._failures += ((member.url, failed) for failed, _ in worker.take_failures())
        except LithifyError as error:
            self._quarantine(member, error)
            return False
        member.is_well = True
        return changed

    # Turns

    def _claim(self) -> bool:
        """Give turns until there are no offers or no free slots left."""
        changed = False
        contenders = [m for m in self._order if m.may_claim]
        while contenders:
            offers = self._offers(contenders)
            contenders = [m for m in contenders if m.url in offers]
            if not offers:
                break
            url = self._turns.order(offers)[0]
            member = self._members[url]
            has_claimed = self._claim_one(member)
            changed = has_claimed or changed
            if has_claimed:
                self._turns.had(url, offers)
            if not member.is_well:
                contenders.remove(member)
        return changed

    def _offers(self, contenders: Sequence[_Member]) -> dict[str, float]:
        offers: dict[str, float] = {}
        for member in contenders:
            assert member.worker is not None
            try:
                with contained(f"a round over {member.url}"):
                    offer = member.worker.offer(is_contested=len(contenders) > 1)
            except LithifyError as error:
                self._quarantine(member, error)
                continue
            if offer is not None:
                offers[member.url] = offer
        return offers

    def _claim_one(
        self,
        member: _Member,
        wanted: Ulid | None = None,
        *,
        is_sharing: bool = False,
        is_untried: bool = False,
    ) -> bool:
        assert member.worker is not None
        try:
            with contained(f"a round over {member.url}"):
                if wanted is None:
                    return member.worker.claim()
                return member.worker.claim_only(wanted, is_sharing=is_sharing, is_untried=is_untried)
        except LithifyError as error:
            self._quarantine(member, error)
            return False

    # Quarantine

    def _replace(self, member: _Member, error: Replaced) -> None:
        """Drop the worker, so that the next round reopens the dataset."""
        member.is_well = False
        worker, member.worker = member.worker, None
        if worker is not None:
            worker.abandon()
            self._observe(events.MadeAnew(worker.url, str(error)))

    def _quarantine(self, member: _Member, error: LithifyError) -> None:
        if isinstance(error, Replaced) and member.worker is not None:
            self._replace(member, error)
            return
        member.is_well = False
        if member.backoff.failed(error, monotonic_ms(self._clock)):
            if not member.quarantined_as:
                member.quarantined_as = member.url if member.worker is None else member.worker.url
            pause_s = self._pause_ms(member) / 1000
            self._observe(events.Quarantined(member.quarantined_as, str(error), pause_s))

    def _recover(self, member: _Member) -> None:
        rounds = member.backoff.succeeded()
        if rounds:
            self._observe(events.Recovered(member.quarantined_as, rounds))
        member.quarantined_as = ""

    def _pause_ms(self, member: _Member) -> int:
        pause_ms = member.backoff.pause_ms
        return min(pause_ms, self._heartbeat_interval_ms) if member.holds else pause_ms


def release(worker: Worker, cause: BaseException | None = None) -> None:
    """Release a worker's compactions. Those that cannot be released are reclaimed when their heartbeats time
    out; this is logged, or noted in the error that is the cause of the release."""
    try:
        with contained(f"releasing unfinished compactions of {worker.url}"):
            worker.release()
    except LithifyError as error:
        if cause is not None:
            cause.add_note(f"and unfinished compactions could not be released: {error}")
        elif isinstance(error, Replaced):
            _log.info("%s was created again, so none of its compactions is released", worker.url)
        else:
            _log.error("worker %s could not release its compactions: %s", worker.id, error)
