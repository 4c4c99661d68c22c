"""Results of expiry runs: `expiry-runs.json` in Lithify's folder of a dataset. It has, for each outcome, the
number of runs, the time of the last one, and the obstacle it met.

It is for operators, so it may be incomplete: of two runs that end at the same moment one may be lost, and a
damaged object starts the counts anew.
"""

from __future__ import annotations

from lithify.base.documents import DocumentCodec
from lithify.base.errors import CorruptObject, ObjectNotFound
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

    def read(self) -> dict[str, Runs]:
        """Return the runs by outcome; empty if none ever ended."""
        try:
            return _RUNS.decode(self._store.get(self._key), self._key)
        except ObjectNotFound:
            return {}
        except CorruptObject as error:
            raise CorruptObject(self._key, f"{error.reason}; delete it") from None

    def add(self, outcome: str, why: str, now_ms: int) -> None:
        """Count a run that has ended."""
        try:
            before = self.read()
        except CorruptObject:
            before = {}
        last = before.get(outcome)
        ended = Runs(1 if last is None else last.count + 1, now_ms, why[:MAX_WHY])
        self._store.put(self._key, _RUNS.encode({**before, outcome: ended}))


_RUNS = DocumentCodec(dict[str, Runs], mends_text=True)
