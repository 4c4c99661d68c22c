"""Execution of all requests to a store: retried (`retries`), hedged while they hang (`hedging`), and reported
while they wait (`waiting`).

1. A request is a function that raises `StoreUnavailable` for a passing failure, and any other error for a
   decision of the store.
2. A process with other work (`WaitPolicy.comes_back`) waits for a silent store no longer than the time limit;
   for all processes the limit ends later tries, even running ones. An abandoned write may still take effect,
   like one whose answer was lost.
3. The final error names the first cause, the last one if it differs, and how long the request waited.

A repeated write may find its own first try: a create raises `ObjectExists`, a replace `PreconditionFailed`. A
caller that must distinguish reads the object back (`lithify.store.versions`).
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from lithify.base.backoff import RandomPause
from lithify.base.clock import Clock, SystemClock
from lithify.base.concurrency import start_thread
from lithify.base.defects import contained
from lithify.base.errors import LithifyError, StoreError, StoreUnavailable
from lithify.store.resilience.causes import UNREACHED
from lithify.store.resilience.hedging import LOOK_S, GotOn, Traffic, followed, least_patience_s
from lithify.store.resilience.retries import RequestFailure, RetryPolicy
from lithify.store.resilience.waiting import FIRST_AFTER_S, Outages, StoreOutage, WaitPolicy

_SLICE_S = 1.0
"""Time between two checks whether to continue waiting."""
SILENCE = "no answer"
_FIRST_PROBE_S = 10.0
_MAX_PROBE_S = 120.0
"""Timeouts of probes for a store's return; longer each time, as each hanging probe occupies a thread."""

_T = TypeVar("_T")
_log = logging.getLogger("lithify")


class Watch:
    """Observation of a sender that retries silently, for a caller that waits for it. This base class does
    nothing, for stores that cannot be away."""

    def got_on(self) -> None:
        """Record that something was sent."""

    def look(self) -> None:
        """Check the store; the waiting caller calls this about every `LOOK_S`."""

    def end(self) -> None:
        """Record that the sender has ended, successfully or not."""


class Direct:
    """Requests to a store that cannot be away: each is sent once, in the caller's thread."""

    def read(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        return call()

    def read_on(self, call: Callable[[GotOn], _T], size_bytes: int = 0) -> _T:
        return call(lambda: None)

    def write(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        return call()

    def watch(self, size_bytes: int, patience_s: float | None = None) -> Watch:
        return Watch()


class Requests(Direct):
    """The requests to one store. Safe to share between threads; pickled without its observer."""

    def __init__(
        self,
        url: str,
        waiting: WaitPolicy | None = None,
        *,
        max_retries: int | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        probe: Callable[[], object] | None = None,
        known: StoreOutage | None = None,
        limit_s: float = math.inf,
    ) -> None:
        """`probe` reads anything, to find out whether the store is back. `known` is the process's shared
        knowledge of the store, for policies with `comes_back`. A try that is silent for `limit_s` has failed;
        most clients abort it by themselves."""
        waiting = waiting if waiting is not None else WaitPolicy()
        self.url = url
        self._probe = probe
        if probe is None:
            waiting = replace(waiting, comes_back=False)
        self._waiting = waiting
        self.policy = RetryPolicy(waiting.max_s, max_retries)
        self._limit_s = limit_s
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._rng = rng if rng is not None else random.Random()
        self._outages = Outages(url, waiting, self._clock, known)
        self._traffic = Traffic(self._clock)
        self._has_answered = False
        self._outages.limit_s = self._max_wait_s
        self._is_asking = False
        """Whether a probe on behalf of a watch is running."""

    def __reduce__(
        self,
    ) -> tuple[Callable[[str, float, int | None], Requests], tuple[str, float, int | None]]:
        return _made_elsewhere, (self.url, self._waiting.tasks_max_s, self.policy.max_retries)

    def read(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        """Return the result of `call`, which changes nothing and reads about `size_bytes`."""

        return self.read_on(lambda _: call(), size_bytes)

    def read_on(self, call: Callable[[GotOn], _T], size_bytes: int = 0) -> _T:
        """Return the result of `call`, which changes nothing and reports each arriving part of the answer."""
        return self._repeated(call, size_bytes, is_hedged=True)

    def write(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        """Return the result of `call`, which sends about `size_bytes`. After an error it may still have taken
        effect."""
        return self._repeated(lambda _: call(), size_bytes, is_hedged=False)

    def repeated(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call`, which changes nothing. It may wait for other things than the store, so
        only its failures count as signs of an outage, not its silence."""
        return self._repeated(lambda _: call(), 0, is_hedged=False, is_followed=False)

    def once(self, call: Callable[[], _T], limit_s: float) -> _T:
        """Return the result of `call`, which must not be repeated. After an error it may still have taken
        effect. It counts as failed after `limit_s` of silence, and may take effect later."""
        self._outages.check()
        waiter = object()

        def silent(for_s: float) -> None:
            if for_s >= limit_s:
                raise StoreUnavailable(f"{self.url}: no answer for {for_s:.0f} s", SILENCE)
            if for_s >= FIRST_AFTER_S:
                self._outages.waits(waiter, self._clock.monotonic_s() - for_s, SILENCE)

        try:
            answer = followed(lambda _: call(), self._clock, self._traffic, patience_s=None, silent=silent)
        except StoreUnavailable:
            self._outages.leaves(waiter)
            raise
        except BaseException as error:
            self._end(waiter, error)
            raise
        self._outages.answered(waiter)
        return answer

    def watch(self, size_bytes: int, patience_s: float | None = None) -> Watch:
        """Return a watch for a sender that may be silent while it sends `size_bytes`, which takes
        `patience_s` if known."""
        return _Watch(self, least_patience_s(size_bytes) if patience_s is None else patience_s)

    def look_for(self, waiter: object, since_s: float | None, patience_s: float) -> float:
        """Record that a caller has waited for a sender since `since_s` (monotonic clock; `None`: now). Return
        the start of the wait. Unless the store is known to answer, probe it in the background."""
        now_s = self._clock.monotonic_s()
        since_s = now_s if since_s is None else since_s
        if now_s - since_s >= patience_s:
            self._outages.waits(waiter, since_s, SILENCE)
        if not self._is_asking and self._probe is not None and now_s - self._traffic.alive_s >= LOOK_S:
            self._is_asking = True
            start_thread(self._ask_whether_there)
        return since_s

    def answered(self, waiter: object) -> None:
        """Record that the sender has made progress."""
        self._outages.answered(waiter)

    def leaves(self, waiter: object) -> None:
        """Record that the caller does not wait for the sender any more."""
        self._outages.leaves(waiter)

    def _ask_whether_there(self) -> None:
        assert self._probe is not None
        try:
            self.read(self._probe)
        except LithifyError:
            pass  # already reported; the sender notices by itself
        finally:
            self._is_asking = False

    def _repeated(
        self, call: Callable[[GotOn], _T], size_bytes: int, *, is_hedged: bool, is_followed: bool = True
    ) -> _T:
        self._outages.check()
        waiter, tries = object(), 0
        first: StoreUnavailable | None = None
        begun_s = failed_s = 0.0
        is_over = False

        def silent(for_s: float) -> None:
            nonlocal is_over
            now_s = self._clock.monotonic_s()
            if for_s >= FIRST_AFTER_S or first is not None:
                since_s = now_s - for_s if first is None else begun_s
                self._outages.waits(waiter, since_s, SILENCE if first is None else first.cause)
            if first is None:
                since_s = max(started_s, self._traffic.alive_s) if self._waiting.comes_back else now_s
            else:
                since_s = failed_s
            is_silent = for_s >= least_patience_s(size_bytes)
            is_over = is_silent and now_s - since_s >= self._max_wait_s
            if is_over or for_s >= self._limit_s:
                raise StoreUnavailable(f"{self.url}: no answer for {for_s:.0f} s", SILENCE)

        while True:
            tries += 1
            started_s = self._clock.monotonic_s()
            try:
                patience_s = self._traffic.usual.patience_s(size_bytes) if is_hedged else None
                answer = (
                    followed(
                        call,
                        self._clock,
                        self._traffic,
                        size_bytes=size_bytes,
                        patience_s=patience_s,
                        silent=silent,
                    )
                    if is_followed
                    else call(lambda: None)
                )
            except StoreUnavailable as error:
                now_s = self._clock.monotonic_s()
                if first is None:
                    first, begun_s, failed_s = error, started_s, now_s
                self._outages.waits(waiter, begun_s, error.cause)
                pause_s = None if is_over else self._pause_s(tries, now_s - failed_s, error)
                if pause_s is None:
                    if self._outages.gives_up(waiter, first.cause):
                        start_thread(self._look_for_return)
                    raise self._given_up(first, error, tries, begun_s) from error
            except BaseException as error:
                self._end(waiter, error)
                raise
            else:
                self._note_answer()
                self._outages.answered(waiter)
                return answer
            try:
                self._sleep(pause_s, waiter, begun_s, first)
            except BaseException:
                self._outages.leaves(waiter)
                raise

    def _end(self, waiter: object, error: BaseException) -> None:
        """End a request. Any error except an interrupt is an answer of the store."""
        if isinstance(error, Exception):
            self._note_answer()
            self._traffic.got_on()
            self._outages.answered(waiter)
        else:
            self._outages.leaves(waiter)

    def _note_answer(self) -> None:
        if not self._has_answered:
            self._has_answered = True
            self._outages.limit_s = self._max_wait_s

    @property
    def _max_wait_s(self) -> float:
        unanswered_max_s = math.inf if self._has_answered else self._waiting.unanswered_max_s
        return min(self.policy.max_wait_s, unanswered_max_s)

    def _pause_s(self, tries: int, waited_s: float, error: StoreUnavailable) -> float | None:
        if self._outages.is_given_up:
            return None
        is_outage = self._has_answered and error.cause in UNREACHED
        is_doubtful = error.is_doubtful and not is_outage
        failure = RequestFailure.DOUBTFUL if is_doubtful else RequestFailure.PASSING
        policy = replace(self.policy, max_wait_s=self._max_wait_s)
        return policy.pause_s(tries, waited_s, failure, self._rng)

    def _sleep(self, pause_s: float, waiter: object, since_s: float, first: StoreUnavailable) -> None:
        left_s = pause_s
        while left_s > 0 and not self._outages.is_given_up:
            slice_s = min(left_s, _SLICE_S)
            self._clock.sleep_s(slice_s)
            left_s -= slice_s
            self._outages.waits(waiter, since_s, first.cause)

    def _look_for_return(self) -> None:
        """Probe until the store answers again or the process is stopping."""
        assert self._probe is not None
        waiter, since_s = object(), self._clock.monotonic_s()
        pause = RandomPause(self.policy.first_pause_s, self.policy.max_pause_s)
        failures, limit_s = 1, _FIRST_PROBE_S
        while not self._waiting.is_ending():
            failures += 1
            self._clock.sleep_s(pause.after_s(failures, self._rng))
            try:
                with contained(f"checking whether the store {self.url} is available again"):
                    self._probe_for(limit_s)
            except StoreUnavailable as error:
                self._outages.waits(waiter, since_s, error.cause)
                if error.cause == SILENCE:
                    limit_s = min(2 * limit_s, _MAX_PROBE_S)
                continue
            except StoreError:
                pass  # an answer
            except LithifyError as error:
                # Ending here would leave the store given up for ever.
                _log.error("%s", error)
                continue
            self._outages.answered(waiter)
            return
        self._outages.looks_no_more(waiter)

    def _probe_for(self, limit_s: float) -> None:
        """Probe once, with a timeout: a probe that hangs since the outage began may never be answered, even
        though the store is back."""
        probe = self._probe
        assert probe is not None

        def silent(for_s: float) -> None:
            if for_s >= limit_s:
                raise StoreUnavailable(f"{self.url}: no answer for {for_s:.0f} s", SILENCE)

        followed(lambda _: probe(), self._clock, self._traffic, patience_s=None, silent=silent)

    def _given_up(
        self, first: StoreUnavailable, last: StoreUnavailable, tries: int, begun_s: float
    ) -> StoreUnavailable:
        waited_s = self._clock.monotonic_s() - begun_s
        if tries == 1:
            away_s = self._outages.away_s
            if away_s <= waited_s or away_s < 1:
                return first
            text = f"{first} (the store has been unavailable for {away_s:.0f} s)"
            return StoreUnavailable(text, first.cause, is_doubtful=first.is_doubtful)
        at_last = "" if last.cause == first.cause else f", finally {last.cause}"
        return StoreUnavailable(
            f"{first} (waited for the store for {waited_s:.0f} s, {tries} tries{at_last})",
            first.cause,
            is_doubtful=first.is_doubtful,
        )


class _Watch(Watch):
    def __init__(self, requests: Requests, patience_s: float) -> None:
        self._requests = requests
        self._patience_s = patience_s
        self._since_s: float | None = None
        """When the wait began, if known."""
        self._lock = threading.Lock()
        self._has_ended = False

    def got_on(self) -> None:
        if self._since_s is not None:
            self._since_s = None
            self._requests.answered(self)

    def look(self) -> None:
        with self._lock:
            if not self._has_ended:  # else it would remain among the waiting requests
                self._since_s = self._requests.look_for(self, self._since_s, self._patience_s)

    def end(self) -> None:
        with self._lock:
            self._has_ended = True
            self._requests.leaves(self)


def _made_elsewhere(url: str, max_wait_s: float, max_retries: int | None) -> Requests:
    return Requests(url, WaitPolicy(max_wait_s, tasks_max_s=max_wait_s), max_retries=max_retries)
