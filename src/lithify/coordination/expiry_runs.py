"""How the runs ended that were to let history go: `expiry-runs.json` beside a dataset, by outcome how many,
when the last one was, and what stood in its way.

It is for people, so it may be lost: of two runs that end at the same moment one may be forgotten, and where
it is damaged counting begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.coordination.thresholds import MAX_POSITION
from lithify.protocol.retained import Runs
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MAX_WHY = 1_000
"""Characters of what stood in the way."""


class ExpiryRuns:
    """The runs over the dataset whose own folder is `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._key = join(folder, "expiry-runs.json")

    def read(self) -> Mapping[str, Runs]:
        """By outcome; empty when none ever ended."""
        try:
            fields = json.loads(self._store.get(self._key))
            return {text(outcome): _runs(found) for outcome, found in fields.items()}
        except ObjectNotFound:
            return {}
        except UNDECODABLE as error:
            raise CorruptObject(self._key, f"does not decode: {error}; delete it") from error

    def add(self, outcome: str, why: str, now_ms: int) -> None:
        """Another one has ended."""
        try:
            before = self.read()
        except CorruptObject:
            before = {}
        last = before.get(outcome)
        ended = Runs(1 if last is None else last.count + 1, now_ms, why[:MAX_WHY])
        fields = {name: asdict(runs) for name, runs in {**before, outcome: ended}.items()}
        self._store.put(self._key, json.dumps(fields).encode())


def _runs(fields: Any) -> Runs:
    return Runs(
        whole_number(fields["count"], most=MAX_POSITION),
        whole_number(fields["last_ms"], most=MAX_POSITION),
        text(fields["why"]),
    )
