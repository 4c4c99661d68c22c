"""Which of a dataset's compactions is claimed next, and what counts as an attempt."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from pyiceberg.catalog import Catalog

from lithify.base import events
from lithify.base.errors import StoreError
from lithify.base.ids import RandomIds, Ulid
from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
from lithify.datasets.slatedb.model import TieredSpec
from lithify.planning.turns import AGEING_TURNS
from lithify.protocol.attempts import Attempt
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.transitions import AnyLedger
from lithify.testing import ManualClock, MemoryStore
from tests.datasets.iceberg.conftest import catalog
from tests.datasets.iceberg.running import dataset_of
from tests.datasets.iceberg.tables import START, append, make_rows, new_table
from tests.datasets.slatedb.trees import MB, Mint, manifest_of
from tests.service.toys import Service, ToySpec

__all__ = ["catalog"]


def claimed_units(service: Service) -> list[str]:
    """Units in the order of their claims."""
    specs = {c.id: c.spec for toy in service.toys.values() for c in toy.value.compactions}
    return [specs[Ulid(event.compaction)].unit for event in service.seen(events.Claimed)]


def test_the_most_urgent_is_claimed_first_however_old_the_others_are() -> None:
    service = Service("a")
    service.toy("a").add(*(ToySpec(f"run merge {n}", 0.3) for n in range(5)))
    service.rounds(1)
    service.toy("a").add(ToySpec("L0 merge", 0.9))
    service.rounds(5)
    assert claimed_units(service)[:2] == ["run merge 0", "L0 merge"]


def test_what_may_wait_waits_for_a_bounded_number_of_claims() -> None:
    service = Service("a")
    toy = service.toy("a")
    toy.add(ToySpec("may wait", 0.0))

    def each() -> None:
        if toy.states()[CompactionState.SCHEDULED] < 3:
            toy.add(ToySpec("urgent", 1.0), ToySpec("urgent", 1.0))

    service.rounds(30, each)
    waited = claimed_units(service).index("may wait")
    assert AGEING_TURNS <= waited <= AGEING_TURNS + 4


def test_what_has_failed_stands_behind_what_has_not_been_tried() -> None:
    service = Service("a", first_retry_pause_ms=1_000)
    toy = service.toy("a")
    toy.add(ToySpec("poison", 1.0, is_poison=True))
    service.rounds(10)
    tried = len(claimed_units(service))
    toy.add(*(ToySpec("sound", 0.0) for _ in range(5)))
    service.rounds(8, lambda: service.clock.advance_s(60))
    assert claimed_units(service)[tried : tried + 5] == ["sound"] * 5


def test_a_single_one_needs_no_look_at_the_snapshot() -> None:
    service = Service("a")
    toy = service.toy("a")
    toy.add(ToySpec("only"))
    service.rounds(1)
    assert len(service.seen(events.Claimed)) == 1
    assert toy.snapshots == 1, "what the claim itself reads"


# What a kind says


def _empty() -> AnyLedger:
    return Ledger()


def test_a_database_is_the_more_urgent_the_nearer_its_writer_is_to_a_stall() -> None:
    mint, clock = Mint(), ManualClock()
    dataset = SlateDataset(MemoryStore(clock), "db", clock, RandomIds(), options=SlateOptions())
    found = []
    for l0 in (4, 6, 8):
        manifest = manifest_of(mint.tree(l0, dict.fromkeys(range(4), MB)))
        merge = TieredSpec(b"", tuple(view.id for view in manifest.root.l0[-4:]), (), 4)
        runs = TieredSpec(b"", (), (3, 2, 1, 0), 0)
        assert 0 < dataset.priority(runs, manifest) < 0.5 < dataset.priority(merge, manifest)
        found.append(dataset.priority(merge, manifest))
        (l0_planned, runs_planned) = dataset.propose(manifest, _empty()).proposals
        assert l0_planned.priority == dataset.priority(l0_planned.spec, manifest)
        assert runs_planned.priority == dataset.priority(runs_planned.spec, manifest)
    assert all(earlier < later for earlier, later in pairwise(found))
    assert dataset.priority(merge, manifest_of(mint.tree(0))) == 0, "its sources are gone"
    assert dataset.priority(TieredSpec(b"gone", (), (1, 0), 0), manifest_of(mint.tree(4))) == 0


def test_a_table_is_the_more_urgent_the_more_files_would_be_saved(catalog: Catalog) -> None:
    table = new_table(catalog)
    found = []
    for _ in range(3):
        for _ in range(3):
            append(table, make_rows(3, START))
        dataset = dataset_of(table)
        (proposal,) = dataset.propose(dataset.snapshot(), _empty()).proposals
        assert dataset.priority(proposal.spec, dataset.snapshot()) == proposal.priority
        found.append(proposal.priority)
    assert all(earlier < later for earlier, later in pairwise(found))


# Attempts


def test_a_failure_that_was_noted_twice_is_counted_once() -> None:
    service = Service("a")
    toy = service.toy("a")
    (compaction_id,) = toy.add(ToySpec("unit"))
    attempt = Attempt("w", "because", 5)
    for _ in range(2):
        toy.journal.add_attempt(compaction_id, attempt)
    toy.journal.add_attempt(compaction_id, replace(attempt, at_ms=6))
    assert len(toy.journal.attempts()[compaction_id]) == 2


def test_a_failure_is_counted_once_though_giving_back_fails() -> None:
    service = Service("a")
    toy = service.toy("a")
    (compaction_id,) = toy.add(ToySpec("unit", is_poison=True))
    service.rounds(1)
    toy.write_errors = [StoreError("no answer")] * 3
    service.rounds(30)
    assert not toy.write_errors
    failed = service.seen(events.AttemptFailed)
    assert len(toy.journal.attempts()[compaction_id]) == len(failed)
    assert len(list(toy.store.list("own/attempts"))) == len(failed), "and noted once"
    assert len(failed) <= len(service.seen(events.Claimed))
