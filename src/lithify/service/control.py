"""Commands on a dataset's compactions: submit, cancel, retry, and show how one ended.

Each changes the ledger from a process that is neither coordinator nor worker:

1. *Submit* validates first, as the coordinator will again, so that a mistake is reported at once and nothing
   is written. Sources that are being compacted already are refused.
2. *Cancel* records the reason, then marks Failed the compactions that are not yet Compacted. Their worker
   sees at its next poll that it is no longer the owner, and stops; the coordinator backs off from the same
   sources, for a pause that does not grow (`compaction.failures`). Thanks to this order, every reader that
   sees Failed sees the reason. A crash between the two cancels nothing: notes that the ledger contradicts do
   not count. SlateDB's coordinator would write its own version of the compaction back, so there cancelling is
   refused.
3. *Retry* submits the spec of a recorded failure under a new id, and deletes the failure.
4. Operators may give the end of an id, as displayed: exactly one of the compactions in the ledger and of the
   recorded failures must end in it.
5. A finished compaction leaves the ledger when a newer one finishes. Its result is then read from older
   versions of the ledger, from the published history, and from the recorded failures.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lithify.base.clock import Clock
from lithify.base.errors import DeadlineExceeded, Refused, StoreError
from lithify.base.ids import Ids, Ulid, parse_ulid
from lithify.datasets.kind import DatasetPort
from lithify.protocol import transitions
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.model import Compaction, CompactionState
from lithify.protocol.presence import Presence
from lithify.protocol.transitions import AnyCompaction, AnyLedger

_log = logging.getLogger("lithify")

CANCELLED = "was cancelled"
_END_OF_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{4,25}", re.ASCII | re.IGNORECASE)
_NO_LEDGER = "no coordinator has ever run on {url}; start one: lithify run {url}"


@dataclass(frozen=True, slots=True)
class CompactionOutcome:
    """The state of a compaction, or its result."""

    compaction: Ulid
    state: CompactionState
    reason: str | None = None
    """Why it failed, if known."""


def submit(dataset: DatasetPort, clock: Clock, ids: Ids, specs: Sequence[Any]) -> tuple[Ulid, ...]:
    """Add `specs` to the ledger as Submitted, all or none. Return their ids. Raise `Refused` with the
    reason."""
    snapshot = dataset.snapshot()
    if dataset.ledger() is None:
        raise Refused(_NO_LEDGER.format(url=dataset.url))
    now_ms = dataset.new_id_ms(snapshot, clock.now_ms())
    new: list[AnyCompaction] = []

    def change(latest: AnyLedger) -> AnyLedger:
        new.clear()
        for spec in specs:
            compaction: AnyCompaction = Compaction(ids.ulid(transitions.next_id_ms(latest, now_ms)), spec)
            _check_free(dataset, compaction, latest)
            latest = transitions.submit(latest, compaction)
            refusal = dataset.validate(compaction, snapshot, latest)
            if refusal is not None:
                raise Refused(f"this cannot be compacted: {refusal}")
            new.append(compaction)
        return latest

    dataset.update_ledger(change)
    return tuple(compaction.id for compaction in new)


def _check_free(dataset: DatasetPort, compaction: AnyCompaction, ledger: AnyLedger) -> None:
    wanted = dataset.identify(compaction.spec).inputs
    for other in ledger.active():
        shared = wanted & dataset.identify(other.spec).inputs
        if shared:
            raise Refused(
                f"{', '.join(sorted(shared))} is already a source of compaction {other.id}, which is "
                f"{other.state.value}; wait for it (`lithify wait`) or cancel it (`lithify cancel`)"
            )


def cancel(dataset: DatasetPort, clock: Clock, compaction_ids: Sequence[Ulid]) -> None:
    """Mark Failed these compactions, all or none. Raise `Refused` with the reason if that is not possible."""
    coordinator = dataset.coordinator()
    if coordinator.presence is Presence.FOREIGN:
        raise Refused(
            f"{dataset.url} is coordinated by {coordinator.system}, which cannot cancel: its "
            "coordinator would restore the compaction; stop the worker that runs it instead"
        )
    ledger = dataset.ledger()
    if ledger is None:
        raise Refused(_NO_LEDGER.format(url=dataset.url))
    attempts = dataset.journal.attempts()
    for compaction in [_cancellable(dataset, ledger, i) for i in compaction_ids]:
        tries = len(attempts.get(compaction.id, ()))
        spec, unit = dataset.encode_spec(compaction.spec), dataset.identify(compaction.spec).unit
        dataset.journal.add_failure(
            FailedAttempt(compaction.id, CANCELLED, tries, clock.now_ms(), spec, is_cancelled=True, unit=unit)
        )

    def change(latest: AnyLedger) -> AnyLedger:
        for compaction_id in compaction_ids:
            _cancellable(dataset, latest, compaction_id)
            latest = transitions.fail(latest, compaction_id)
        return latest

    try:
        dataset.update_ledger(change)
    except Refused:
        for compaction_id in compaction_ids:
            if not _is_failed(dataset, compaction_id):  # another command may have cancelled it
                dataset.journal.forgive(compaction_id)
        raise
    for compaction_id in compaction_ids:
        dataset.journal.clear(compaction_id)


def _is_failed(dataset: DatasetPort, compaction_id: Ulid) -> bool:
    ledger = dataset.ledger()
    entry = ledger.get(compaction_id) if ledger is not None else None
    return entry is not None and entry.state is CompactionState.FAILED


def _cancellable(dataset: DatasetPort, ledger: AnyLedger, compaction_id: Ulid) -> AnyCompaction:
    compaction = ledger.get(compaction_id)
    if compaction is None:
        raise Refused(
            f"{dataset.url} has no compaction {compaction_id} under way; `lithify status` shows those it has"
        )
    if compaction.state.is_terminal:
        raise Refused(f"compaction {compaction_id} is already {compaction.state.value}")
    if compaction.state is CompactionState.COMPACTED:
        raise Refused(
            f"compaction {compaction_id} is done and about to be committed, so it can no longer be cancelled"
        )
    return compaction


def retry(dataset: DatasetPort, clock: Clock, ids: Ids, compaction_ids: Sequence[Ulid]) -> tuple[Ulid, ...]:
    """Submit failed compactions again, all or none. Return their new ids."""
    new_ids = submit(dataset, clock, ids, [_failed_spec(dataset, i) for i in compaction_ids])
    for compaction_id in compaction_ids:
        dataset.journal.forgive(compaction_id)
    return new_ids


def _failed_spec(dataset: DatasetPort, compaction_id: Ulid) -> Any:
    failure = _noted(dataset, compaction_id)
    if failure is not None:
        return dataset.decode_spec(failure.spec)
    entry = dataset.history().last_entry(compaction_id)
    if entry is None:
        raise Refused(f"compaction {compaction_id} is unknown, or its records have been deleted")
    if entry.state is not CompactionState.FAILED:
        raise Refused(f"compaction {compaction_id} has not failed: it is {entry.state.value}")
    return entry.spec


def outcome(dataset: DatasetPort, compaction_id: Ulid) -> CompactionOutcome | None:
    """Return the state of a compaction, or its result; `None` if nothing is known about it any more."""
    ledger = dataset.ledger()
    entry = ledger.get(compaction_id) if ledger is not None else None
    if entry is None:
        entry = _ended(dataset, compaction_id)
    if entry is not None and entry.state is not CompactionState.FAILED:
        return CompactionOutcome(compaction_id, entry.state)
    failure = _noted(dataset, compaction_id)
    if failure is not None:
        return CompactionOutcome(compaction_id, CompactionState.FAILED, failure.reason)
    return CompactionOutcome(compaction_id, CompactionState.FAILED) if entry is not None else None


def identified(dataset: DatasetPort, given: Sequence[str]) -> list[Ulid]:
    """Return the ids that an operator means, each once. Raise `Refused` for one that is malformed, unknown or
    ambiguous."""
    found = (_identified(dataset, text) for text in given)
    return list(dict.fromkeys(found))


def _identified(dataset: DatasetPort, text: str) -> Ulid:
    try:
        return parse_ulid(text)
    except ValueError:
        pass
    if not _END_OF_ID.fullmatch(text):
        raise Refused(f"{text[:40]}: not the id of a compaction; `lithify status` shows the ids")
    ledger = dataset.ledger()
    known = {c.id for c in ledger.compactions} if ledger is not None else set()
    known |= {failure.compaction for failure in dataset.journal.failures()}
    matching = sorted(i for i in known if i.endswith(text.upper()))
    if not matching:
        raise Refused(f"{dataset.url} has no known compaction whose id ends in {text}; give the whole id")
    if len(matching) > 1:
        raise Refused(
            f"the ids of several compactions end in {text}: {', '.join(matching)}; give more of the id"
        )
    return matching[0]


def active(dataset: DatasetPort) -> list[Ulid]:
    """Return the active compactions."""
    ledger = dataset.ledger()
    return [c.id for c in ledger.active()] if ledger is not None else []


def wait(
    dataset: DatasetPort,
    clock: Clock,
    compaction_ids: Sequence[Ulid],
    *,
    poll_s: float,
    timeout_s: float | None = None,
    on_look: Callable[[], None] = lambda: None,
) -> list[CompactionOutcome]:
    """Poll every `poll_s` until all these compactions have ended. Return their results, in order. Raise
    `DeadlineExceeded` if they have not ended before `timeout_s`, and `Refused` if nothing is known about one.
    `on_look` is called after each poll but the last. A store that becomes unreachable after the first poll is
    waited for as well."""
    ends_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
    ended: dict[Ulid, CompactionOutcome] = {}
    has_looked, is_away = False, False
    while True:
        try:
            _look(dataset, compaction_ids, ended)
            if len(ended) == len(compaction_ids):
                return [ended[compaction_id] for compaction_id in compaction_ids]
            has_looked, is_away = True, False
            on_look()
        except StoreError as error:
            if not has_looked:
                raise
            if not is_away:
                _log.warning("the poll failed and is retried: %s", error)
            is_away = True
        if ends_s is not None and clock.monotonic_s() + poll_s > ends_s:
            left = ", ".join(i for i in compaction_ids if i not in ended)
            raise DeadlineExceeded(f"not finished in time: {left}; `lithify status` shows what they wait for")
        clock.sleep_s(poll_s)


def _look(dataset: DatasetPort, compaction_ids: Sequence[Ulid], ended: dict[Ulid, CompactionOutcome]) -> None:
    """Add to `ended` those that have ended."""
    under_way = set(active(dataset))
    for compaction_id in compaction_ids:
        if compaction_id in ended or compaction_id in under_way:
            continue
        found = outcome(dataset, compaction_id)
        if found is None:
            raise Refused(
                f"compaction {compaction_id} of {dataset.url} is unknown: it never existed, or it has ended "
                "and its records were deleted"
            )
        if found.state.is_terminal:
            ended[compaction_id] = found


def _ended(dataset: DatasetPort, compaction_id: Ulid) -> AnyCompaction | None:
    """Return the last state of a compaction that has left the ledger, if known."""
    entry = dataset.history().last_entry(compaction_id)
    if entry is None or entry.state.is_terminal:
        return entry
    # It ended and left the ledger in one step, as happens when a newer one finishes at the same time.
    return replace(entry, state=CompactionState.COMPLETED) if dataset.was_committed(entry) else None


def _noted(dataset: DatasetPort, compaction_id: Ulid) -> FailedAttempt | None:
    return next((f for f in dataset.journal.failures() if f.compaction == compaction_id), None)
