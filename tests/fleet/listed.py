"""A merge operator and a filter that the operator of a worker lists."""

from lithify.datasets.slatedb.hooks import FilterDecision, Keep, Row


def operator(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    return (existing or b"") + operand


def keep_all(row: Row) -> FilterDecision:
    return Keep()
