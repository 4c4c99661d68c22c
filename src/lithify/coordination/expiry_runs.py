"""Results of expiry runs: `expiry-runs.json` in Lithify's folder of a dataset. It has, for each outcome, the
number of runs, the time of the last one, and the obstacle it met.

It is for operators, so it may be incomplete: of two runs that end at the same moment one may be lost, and a
damaged object starts the counts anew.
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
"""Characters of the obstacle's description."""


class ExpiryRuns:
    """The expiry runs of the dataset whose own folder is `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._key = join(folder, "expiry-runs.json")

    def read(self) -> Mapping[str, Runs]:
        """Return the runs by outcome; empty if none ever ended."""
        try:
            fields = json.loads(self._store.get(self._key))
            return {text(outcome): _runs(found) for outcome, found in fields.items()}
        except ObjectNotFound:
            return {}
        except UNDECODABLE as error:
            raise CorruptObject(self._key, f"does not decode: {error}; delete it") from error

    def add(self, outcome: str, why: str, now_ms: int) -> None:
        """Count a run that has ended."""
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
