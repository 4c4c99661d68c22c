"""Pieces decoded a bite at a time."""

from __future__ import annotations

import random

import pytest

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.format.chunked_decode import decoded
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, encode, encode_all


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bite_bytes", [1, 300, 5000, 1 << 20])
def test_bites_are_what_all_of_it_is(seed: int, bite_bytes: int) -> None:
    """Whole batches, of which a larger one is a bite alone."""
    batches = logs.random_log(random.Random(seed), batches=20)
    data = [encode_all(batches[:7]), b"", encode_all(batches[7:])]
    found = list(decoded([("log", piece) for piece in data], after=-1, bite_bytes=bite_bytes))
    rows = [row for bite, _ in found for row in logs.rows(bite)]
    assert rows == logs.expected_rows(batches)
    assert sum(size for _, size in found) == sum(map(len, data))
    assert all(size <= bite_bytes or len(bite.batches) == 1 for bite, size in found)


def a_log() -> list[Batch]:
    return [logs.data(n, ("a", "1")) for n in range(3)]


def test_what_is_damaged_is_refused_where_it_is() -> None:
    data = encode_all(a_log())
    size = len(encode(a_log()[0]))
    for broken in (data[:-1], data[: 2 * size + 5], data[:-1] + b"?"):
        bites = decoded([("log", broken)], after=-1, bite_bytes=1)
        assert [next(bites)[1], next(bites)[1]] == [size, size]
        with pytest.raises(CorruptObject, match=rf"^log \+ {2 * size}: "):
            next(bites)


def test_offsets_ascend_from_bite_to_bite() -> None:
    first, second, _ = a_log()
    bites = decoded([("log", encode_all([second, first]))], after=-1, bite_bytes=1)
    next(bites)
    with pytest.raises(CorruptObject, match="at or before the last offset"):
        next(bites)
    with pytest.raises(CorruptObject, match="at or before the last offset"):
        next(decoded([("log", encode(first))], after=0))
