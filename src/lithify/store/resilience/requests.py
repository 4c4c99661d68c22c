"""Every request to a store: repeated while it may help (`retries`), hedged while it hangs (`hedging`), and
told of while it waits (`waiting`).

1. A request is a function that raises `StoreUnavailable` for what may pass, and any other error for what the
   store has decided.
2. Who has others to see to (`WaitPolicy.comes_back`) waits no longer than the bound for a store from which
   nothing comes; for anybody the bound ends the later tries, even those that are under way. A write that is
   not waited for any more may take effect yet, like one whose answer was lost.
3. The error at the end names the first cause, the last one if it is another, and how long it was waited for.

A write that is repeated may find its own first try: a create says `ObjectExists`, a replace
`PreconditionFailed`. Whoever must know which it was reads back (`lithify.store.versions`).
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
"""Between two looks whether anybody still wants to wait."""
SILENCE = "no answer"
_FIRST_PROBE_S = 10.0
_MAX_PROBE_S = 120.0
"""For so long an answer is waited for by who looks for a store's return; longer each time, as what hangs on
is held by a thread."""

_T = TypeVar("_T")
_log = logging.getLogger("lithify")


class Watch:
    """Of a sender that repeats by itself what fails, and says nothing of it. For one that waits for it: a
    store that cannot be away needs none."""

    def got_on(self) -> None:
        """Something was sent."""

    def look(self) -> None:
        """Called about every `LOOK_S` by who waits for the sender."""

    def end(self) -> None:
        """The sender has ended, well or not."""


class Direct:
    """Requests to a store that cannot be away: each is made once, by whoever makes it."""

    def read(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        return call()

    def read_on(self, call: Callable[[GotOn], _T], size_bytes: int = 0) -> _T:
        return call(lambda: None)

    def write(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        return call()

    def watch(self, size_bytes: int, patience_s: float | None = None) -> Watch:
        return Watch()


class Requests(Direct):
    """The requests to one store. Safe to share between threads; travels to other processes without whom to
    tell."""

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
        """`probe` reads something, whatever, by which a service learns that the store is back. `known` is
        what others in this process know of the same store, for those who come back to it. A try that is
        silent for `limit_s` has failed; most clients cut it off by themselves."""
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
        self._is_asking = False
        """Whether the store is there, for those who wait for a sender."""

    def __reduce__(
        self,
    ) -> tuple[Callable[[str, float, int | None], Requests], tuple[str, float, int | None]]:
        return _made_elsewhere, (self.url, self._waiting.tasks_max_s, self.policy.max_retries)

    def read(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        """What `call` gives, which changes nothing and reads about so much."""

        return self.read_on(lambda _: call(), size_bytes)

    def read_on(self, call: Callable[[GotOn], _T], size_bytes: int = 0) -> _T:
        """What `call` gives, which changes nothing and tells whenever a part of the answer is there."""
        return self._repeated(call, size_bytes, is_hedged=True)

    def write(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        """What `call` gives, which sends about so much, and may have taken effect although it failed."""
        return self._repeated(lambda _: call(), size_bytes, is_hedged=False)

    def repeated(self, call: Callable[[], _T]) -> _T:
        """What `call` gives, which changes nothing. Other things may keep it waiting, so only its failures
        say anything of the store."""
        return self._repeated(lambda _: call(), 0, is_hedged=False, is_followed=False)

    def once(self, call: Callable[[], _T], limit_s: float) -> _T:
        """What `call` gives, which must not be repeated, and may have taken effect although it failed. When
        nothing has come for `limit_s` it counts as failed, and may take effect yet."""
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

    def sent(self, call: Callable[[], _T], size_bytes: int = 0) -> _T:
        """What `call` gives, which sends about so much and repeats it by itself."""
        watch = self.watch(size_bytes)
        try:
            answer = followed(
                lambda _: call(),
                self._clock,
                self._traffic,
                size_bytes=size_bytes,
                patience_s=None,
                silent=lambda _: watch.look(),
            )
            watch.got_on()
            return answer
        finally:
            watch.end()

    def watch(self, size_bytes: int, patience_s: float | None = None) -> Watch:
        """Of a sender of which nothing need be heard until so much is sent, which takes `patience_s`, if that
        is known."""
        return _Watch(self, least_patience_s(size_bytes) if patience_s is None else patience_s)

    def look_for(self, waiter: object, since_s: float | None, patience_s: float) -> float:
        """Somebody waits for what is repeated elsewhere, since then by the monotonic clock if not only now;
        since when. Asks, beside the caller, whether the store is there, unless that is known."""
        now_s = self._clock.monotonic_s()
        since_s = now_s if since_s is None else since_s
        if now_s - since_s >= patience_s:
            self._outages.waits(waiter, since_s, SILENCE)
        if not self._is_asking and self._probe is not None and now_s - self._traffic.alive_s >= LOOK_S:
            self._is_asking = True
            start_thread(self._ask_whether_there)
        return since_s

    def answered(self, waiter: object) -> None:
        """What was waited for so has gone on."""
        self._outages.answered(waiter)

    def leaves(self, waiter: object) -> None:
        """It is not waited for any more."""
        self._outages.leaves(waiter)

    def _ask_whether_there(self) -> None:
        assert self._probe is not None
        try:
            self.read(self._probe)
        except LithifyError:
            pass  # it was told of; what it means for the sender, the sender finds out
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
            is_over = is_silent and now_s - since_s >= self.policy.max_wait_s
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
                self._has_answered = True
                self._outages.answered(waiter)
                return answer
            try:
                self._sleep(pause_s, waiter, begun_s, first)
            except BaseException:
                self._outages.leaves(waiter)
                raise

    def _end(self, waiter: object, error: BaseException) -> None:
        """Any other error is an answer of the store's, but for an interrupt."""
        if isinstance(error, Exception):
            self._has_answered = True
            self._traffic.got_on()
            self._outages.answered(waiter)
        else:
            self._outages.leaves(waiter)

    def _pause_s(self, tries: int, waited_s: float, error: StoreUnavailable) -> float | None:
        if self._outages.is_given_up:
            return None
        is_outage = self._has_answered and error.cause in UNREACHED
        is_doubtful = error.is_doubtful and not is_outage
        failure = RequestFailure.DOUBTFUL if is_doubtful else RequestFailure.PASSING
        return self.policy.pause_s(tries, waited_s, failure, self._rng)

    def _sleep(self, pause_s: float, waiter: object, since_s: float, first: StoreUnavailable) -> None:
        left_s = pause_s
        while left_s > 0 and not self._outages.is_given_up:
            slice_s = min(left_s, _SLICE_S)
            self._clock.sleep_s(slice_s)
            left_s -= slice_s
            self._outages.waits(waiter, since_s, first.cause)

    def _look_for_return(self) -> None:
        """Until the store answers again, or nobody wants to know."""
        assert self._probe is not None
        waiter, since_s = object(), self._clock.monotonic_s()
        pause = RandomPause(self.policy.first_pause_s, self.policy.max_pause_s)
        failures, limit_s = 1, _FIRST_PROBE_S
        while not self._waiting.is_ending():
            failures += 1
            self._clock.sleep_s(pause.after_s(failures, self._rng))
            try:
                with contained(f"looking whether the store {self.url} is back"):
                    self._probe_for(limit_s)
            except StoreUnavailable as error:
                self._outages.waits(waiter, since_s, error.cause)
                if error.cause == SILENCE:
                    limit_s = min(2 * limit_s, _MAX_PROBE_S)
                continue
            except StoreError:
                pass  # an answer
            except LithifyError as error:
                # Whatever it is, who ends here leaves the store given up for ever.
                _log.error("%s", error)
                continue
            self._outages.answered(waiter)
            return
        self._outages.looks_no_more(waiter)

    def _probe_for(self, limit_s: float) -> None:
        """Ask once. What hung when the store fell away may never be answered, though the store is back."""
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
            text = f"{first} (the store is away since {away_s:.0f} s)"
            return StoreUnavailable(text, first.cause, is_doubtful=first.is_doubtful)
        at_last = "" if last.cause == first.cause else f", at last {last.cause}"
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
        """When the wait began, as far as is known."""
        self._lock = threading.Lock()
        self._has_ended = False

    def got_on(self) -> None:
        if self._since_s is not None:
            self._since_s = None
            self._requests.answered(self)

    def look(self) -> None:
        with self._lock:
            if not self._has_ended:  # else nobody would take it out of those who wait
                self._since_s = self._requests.look_for(self, self._since_s, self._patience_s)

    def end(self) -> None:
        with self._lock:
            self._has_ended = True
            self._requests.leaves(self)


def _made_elsewhere(url: str, max_wait_s: float, max_retries: int | None) -> Requests:
    return Requests(url, WaitPolicy(max_wait_s, tasks_max_s=max_wait_s), max_retries=max_retries)
