"""Arguments of commands, for every kind of dataset."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from lithify.base.ids import RandomIds
from lithify.protocol.model import CompactionState, Ledger
from tests.fuzz.family import Damaged

JSON = ("--json",)
Arguments = Callable[[Damaged, random.Random], Sequence[str]]


def options(command: str, *choices: Sequence[str]) -> Arguments:
    """The command with one of these lists of options."""
    return lambda it, rng: [*command.split(), *rng.choice(choices), it.url]


def with_ids(command: str) -> Arguments:
    """The command with one compaction or two."""
    return lambda it, rng: [
        *(command, it.url),
        *rng.choice((it.ids[:1], it.ids[-2:-1], rng.sample(it.ids, min(len(it.ids), 2)))),
    ]


def wait(it: Damaged, rng: random.Random) -> Sequence[str]:
    """Wait for one compaction, or for all."""
    ids = rng.sample(it.ids, rng.randrange(2))
    return ["wait", "--timeout", "20s", *rng.choice(([], ["--json"])), it.url, *ids]


def ids_to_ask_for(ledger: Ledger[Any, Any, Any] | None, rng: random.Random) -> tuple[str, ...]:
    """The compactions of a ledger, those that have failed first, and one that nobody made."""
    entries = ledger.compactions if ledger is not None else ()
    known = [c.id for c in sorted(entries, key=lambda c: c.state is not CompactionState.FAILED)]
    return (*known, RandomIds(random.Random(rng.random())).ulid(0))
