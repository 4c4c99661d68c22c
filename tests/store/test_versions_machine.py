"""Two parties that publish, sleep, fail and collect in any order, against a model of what was promised.

Values are drawn from two, so that both parties often write equal bytes. Between any two calls of a
publication the other party may publish or collect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from simulator.core.waiting import AtOnce

from lithify.base import concurrency
from lithify.base.errors import StoreError
from lithify.store.versions import MAX_TRUSTED_LOOKS, Version, VersionConflict, VersionedFiles
from lithify.testing import Call, FaultyStore, MemoryStore, StoreFault, WrappedStore

PARTIES = st.integers(0, 1)
VALUES = st.sampled_from([b"a", b"b"])
CALL_OFFSETS = st.integers(1, 4)
FAULTS = st.sampled_from([StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER])
BOUNDARY = "gc/boundary"


class Interrupted(WrappedStore):
    """Runs planned events before the calls of these numbers, and notes who first created a key."""

    def __init__(self, inner: MemoryStore, creators: dict[str, WrappedStore]) -> None:
        super().__init__(inner)
        self.calls = 0
        self.events: dict[int, Callable[[], object]] = {}
        self._creators = creators

    def around(self, call: Call, action: Callable[[], Any]) -> Any:
        self.calls += 1
        self.events.pop(self.calls, lambda: None)()
        result = action()
        if call.method == "create":
            self._creators.setdefault(call.key, self)
        return result


class Party:
    """One process: its own search state over its own way to the shared store."""

    def __init__(self, shared: MemoryStore, creators: dict[str, WrappedStore]) -> None:
        self.interrupted = Interrupted(shared, creators)
        self.planned: dict[int, StoreFault] = {}
        self.store = FaultyStore(self.interrupted, lambda number, _: self.planned.pop(number, None))
        self.restart()

    def restart(self) -> None:
        self.files = VersionedFiles(self.store, "state", ".v", BOUNDARY)
        self.base: Version | None = None
        self.late_looks = 0
        """Searches in a row that found an older version than what was promised before."""


class Protocol(RuleBasedStateMachine):
    keeps_put_ids = True

    def __init__(self) -> None:
        super().__init__()
        self.shared = MemoryStore(keeps_put_ids=self.keeps_put_ids)
        self.truth = VersionedFiles(self.shared, "state", ".v", BOUNDARY)
        self.creators: dict[str, WrappedStore] = {}
        self.parties = [Party(self.shared, self.creators), Party(self.shared, self.creators)]
        self.acknowledged: dict[int, bytes] = {}
        self.landed: dict[int, bytes] = {}
        """All that ever was a version, by the store's own account."""

    def note_what_landed(self) -> None:
        boundary = self.truth.boundary()
        for version_id in self.truth.ids():
            if version_id > boundary:
                data = self.truth.read(version_id)
                assert self.landed.setdefault(version_id, data) == data, f"version {version_id} changed"

    def try_publish(self, party: Party, data: bytes) -> None:
        base = party.base
        promised = max(self.acknowledged, default=0)
        try:
            version = party.files.publish(base, data)
        except VersionConflict:
            party.base = None
            return
        except StoreError:
            return
        assert version == Version((base.id if base else 0) + 1, data)
        assert version.id not in self.acknowledged, f"version {version.id} was acknowledged twice"
        assert version.id > promised, "it was put on top of an old version"
        creator = self.creators[party.files.key(version.id)]
        assert creator is party.interrupted, f"version {version.id} is another party's, or was revived"
        self.acknowledged[version.id] = data
        party.base = version

    def look(self, party: Party) -> None:
        promised = max(self.acknowledged, default=0)
        try:
            party.base = party.files.latest()
        except StoreError:
            return
        self.note_what_landed()
        if party.base is not None:
            assert self.landed[party.base.id] == party.base.data, "what never counted was found"
        is_late = (party.base.id if party.base else 0) < promised
        party.late_looks = party.late_looks + 1 if is_late else 0
        assert party.late_looks < MAX_TRUSTED_LOOKS, "who looks never finds out"

    def confirm(self, party: Party) -> None:
        promised = max(self.acknowledged, default=0)
        try:
            party.base = party.files.confirmed()
        except StoreError:
            return
        found = party.base.id if party.base else 0
        assert found >= promised, "an acknowledged version is lost"

    def collect(self, keep: int) -> None:
        latest = self.truth.latest()
        if latest is None or latest.id - keep < 1:
            return
        self.note_what_landed()
        boundary = self.truth.advance_boundary(latest.id - keep)
        for version_id in self.truth.ids():
            if version_id <= boundary:
                self.shared.delete(self.truth.key(version_id))

    @rule(party=PARTIES)
    def search(self, party: int) -> None:
        self.look(self.parties[party])

    @rule(party=PARTIES)
    def search_and_confirm(self, party: int) -> None:
        self.confirm(self.parties[party])

    @rule(party=PARTIES)
    def search_again_and_again(self, party: int) -> None:
        for _ in range(MAX_TRUSTED_LOOKS):
            self.look(self.parties[party])

    @rule(party=PARTIES)
    def restart(self, party: int) -> None:
        self.parties[party].restart()

    @rule(party=PARTIES, data=VALUES)
    def publish_on_what_it_believes(self, party: int, data: bytes) -> None:
        self.try_publish(self.parties[party], data)

    @rule(party=PARTIES, data=VALUES)
    def search_and_publish(self, party: int, data: bytes) -> None:
        self.look(self.parties[party])
        self.try_publish(self.parties[party], data)

    @rule(party=PARTIES, data=VALUES, count=st.integers(1, 7))
    def publish_many(self, party: int, data: bytes, count: int) -> None:
        for _ in range(count):
            self.search_and_publish(party, data)

    @rule(keep=st.integers(1, 3))
    def collect_garbage(self, keep: int) -> None:
        self.collect(keep)

    @rule(party=PARTIES, offset=CALL_OFFSETS, fault=FAULTS)
    def plan_fault(self, party: int, offset: int, fault: StoreFault) -> None:
        planned = self.parties[party]
        planned.planned[len(planned.store.calls) + offset] = fault

    @rule(
        party=PARTIES,
        offset=CALL_OFFSETS,
        data=VALUES,
        count=st.integers(1, 6),
        keep=st.none() | st.integers(1, 2),
    )
    def plan_interruption(self, party: int, offset: int, data: bytes, count: int, keep: int | None) -> None:
        def interruption() -> None:
            self.publish_many(1 - party, data, count)
            if keep is not None:
                self.collect(keep)

        interrupted = self.parties[party].interrupted
        # The interrupting party is not interrupted itself, or the two would wait for each other.
        if not self.parties[1 - party].interrupted.events:
            interrupted.events[interrupted.calls + offset] = interruption

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        self.note_what_landed()
        boundary = self.truth.boundary()
        for version_id, data in self.acknowledged.items():
            assert self.landed[version_id] == data
            if version_id > boundary:
                assert self.truth.read(version_id) == data

    @invariant()
    def versions_have_no_gap(self) -> None:
        ids = [version_id for version_id in self.truth.ids() if version_id > self.truth.boundary()]
        assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True


class ProtocolWithoutPutIds(Protocol):
    keeps_put_ids = False


@pytest.mark.parametrize("machine", [Protocol, ProtocolWithoutPutIds])
def test_two_parties_never_both_win_and_nothing_promised_is_lost(
    machine: type[Protocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "background", AtOnce())  # calls are numbered
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )
