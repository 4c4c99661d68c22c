"""What transactions came to, and what becomes of their batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from lithify.datasets.kafka.format.transactions import AbortedTransaction, Passed, fates, follow
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, in_transaction, marker

ABORT_KEY = b"\0\0\0\0"

INTERLEAVED = [
    in_transaction(0, ("a", "1"), id=1),
    in_transaction(1, ("b", "1"), id=2),
    logs.data(2, ("c", "1")),
    in_transaction(3, ("a", "2"), ("b", "2"), id=1),
    marker(5, id=2, commit=False),
    in_transaction(6, ("b", "3"), id=2),
    marker(7, id=1, commit=True),
    marker(8, id=2, commit=True),
    in_transaction(9, ("d", "1"), id=1),
]


def test_transactions_of_producers_are_told_apart() -> None:
    found = follow(logs.log(*INTERLEAVED).batches)
    assert found.aborted == (AbortedTransaction(2, 1, 5, 0),)
    assert found.open == {1: 9}
    assert found.stable_offset(10) == 9


def test_an_open_transaction_bounds_what_is_decided() -> None:
    batches = logs.log(*INTERLEAVED).batches
    assert follow(batches[:4]).stable_offset(5) == 0
    assert follow(batches[:5]).stable_offset(6) == 0
    assert follow(batches[:7]).stable_offset(8) == 6
    assert follow(batches[:8]).stable_offset(9) == 9


def test_objects_may_be_read_one_after_another() -> None:
    batches = logs.log(*INTERLEAVED).batches
    for cut in range(len(batches) + 1):
        assert follow(batches[cut:], follow(batches[:cut])) == follow(batches)


def test_a_marker_alone_decides_nothing() -> None:
    found = follow(logs.log(marker(3, id=1, commit=False), marker(4, id=1, commit=True)).batches)
    assert (found.aborted, found.open) == ((), {})


def fate(batches: Sequence[Batch]) -> tuple[list[int], list[int]]:
    """Base offsets of the aborted batches and of the empty markers."""
    found = logs.log(*batches).batches
    what, _ = fates(found, follow(found).aborted)
    return logs.column(found[what.aborted], "base_offset"), logs.column(
        found[what.empty_marker], "base_offset"
    )


def test_aborted_data_goes_and_its_marker_stays_until_it_is_gone() -> None:
    assert fate(INTERLEAVED) == ([1], [])
    assert fate([batch for batch in INTERLEAVED if batch.first != 1]) == ([], [5])


def test_a_commit_marker_is_empty_once_all_of_its_data_is_gone() -> None:
    batches = [in_transaction(0, ("a", "1"), id=1), marker(1, id=1, commit=True), logs.data(2, ("a", "2"))]
    assert fate(batches) == ([], [])
    assert fate(batches[1:]) == ([], [1])


def test_commit_marker_retention_with_empty_batch() -> None:
    """A header that stays for its producer's sake is data of the transaction still."""
    left = Batch((), 0, 1, producer=(1, 0, 0), transactional=True, max_timestamp=5)
    assert fate([left, marker(2, id=1, commit=True)]) == ([], [])


def test_abort_marker_retention_with_empty_batch() -> None:
    left = Batch((), 0, 1, producer=(1, 0, 0), transactional=True, max_timestamp=5)
    assert fate([left, marker(2, id=1, commit=False)]) == ([0], [])


def test_clean_empty_control_batch() -> None:
    empty = Batch((), 3, 3, producer=(1, 0, -1), transactional=True, control=True, max_timestamp=5)
    assert fate([empty]) == ([], [3])


def test_an_empty_transaction_between_others_is_empty() -> None:
    batches = [
        in_transaction(0, ("a", "1"), id=1),
        marker(1, id=1, commit=True),
        marker(2, id=1, commit=True),
        marker(3, id=1, commit=False),
    ]
    assert fate(batches) == ([], [2, 3])


def test_aborted_transactions_of_one_producer_follow_each_other() -> None:
    batches = [
        in_transaction(0, ("a", "1"), id=1),
        marker(1, id=1, commit=False),
        in_transaction(2, ("a", "2"), id=1),
        marker(3, id=1, commit=True),
        in_transaction(4, ("a", "3"), id=1),
        marker(5, id=1, commit=False),
    ]
    assert fate(batches) == ([0, 4], [])


def random_transactions(rng: random.Random) -> Iterator[Batch]:
    offset, producers = 0, (1, 2, 3)
    for _ in range(40):
        producer = rng.choice(producers)
        match rng.choice(("data", "data", "plain", "commit", "abort")):
            case "data":
                yield in_transaction(offset, ("k", "1"), ("l", "2"), id=producer)
                offset += 2
            case "plain":
                yield logs.data(offset, ("k", "3"))
                offset += 1
            case decision:
                yield marker(offset, id=producer, commit=decision == "commit")
                offset += 1


def test_a_pass_in_parts_comes_to_the_same() -> None:
    """Aborted transactions over many objects, interleaved; each part is told of all that aborted."""
    for seed in range(60):
        rng = random.Random(seed)
        batches = logs.log(*random_transactions(rng)).batches
        aborted = follow(batches).aborted
        whole, _ = fates(batches, aborted)
        state, goes, empty = Passed(), [], []
        position = 0
        while position < len(batches):
            until = position + rng.choice((1, 2, 7))
            what, state = fates(batches[position:until], aborted, state)
            goes += list(what.aborted)
            empty += list(what.empty_marker)
            position = until
        assert goes == list(whole.aborted)
        assert empty == list(whole.empty_marker)


def test_aborted_is_exactly_what_a_marker_says() -> None:
    """Against a plain replay: a batch is aborted if the next marker of its producer is an abort."""
    for seed in range(60):
        made = list(random_transactions(random.Random(seed)))
        expected = []
        for at, batch in enumerate(made):
            following = (m for m in made[at:] if m.control and m.producer[0] == batch.producer[0])
            decision = next(following, None)
            is_aborted = decision is not None and decision.records[0].key == ABORT_KEY
            if batch.transactional and not batch.control and is_aborted:
                expected.append(batch.first)
        assert fate(made)[0] == expected
