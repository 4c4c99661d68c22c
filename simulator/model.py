"""What the database must hold: every acknowledged row, in the order of its sequence number.

The rows stand for the write-ahead log as well, which no compaction touches: a writer that starts
again replays from here what no manifest holds yet, and a newer writer fences older ones here.
"""

from __future__ import annotations

from collections.abc import Iterator

from lithify.base.errors import Fenced
from simulator.rows import Row, visible_value
from simulator.scenario import Scenario


class Model:
    """All rows ever acknowledged."""

    def __init__(self, scenario: Scenario) -> None:
        prefixes = scenario.segments or (b"k",)
        self.keys = tuple(p + b"%02d" % i for p in prefixes for i in range(scenario.keys_per_segment))
        self.writer_epoch = 0
        self.snapshots: set[int] = set()
        """Sequence numbers that a snapshot of the present writer still reads."""
        self._versions: dict[bytes, list[Row]] = {key: [] for key in self.keys}
        self._log: list[Row] = []

    @property
    def last_seq(self) -> int:
        return self._log[-1].seq if self._log else 0

    def fence(self, writer_epoch: int) -> None:
        """Nothing of an older writer is acknowledged from now on. Its snapshots are gone."""
        self.check_writer(writer_epoch)
        self.writer_epoch = writer_epoch
        self.snapshots.clear()

    def check_writer(self, writer_epoch: int) -> None:
        """`Fenced` for a writer that has a successor."""
        if writer_epoch < self.writer_epoch:
            raise Fenced(f"writer {writer_epoch} is fenced by writer {self.writer_epoch}")

    def acknowledge(self, row: Row) -> None:
        """The row is durable."""
        self._log.append(row)
        self._versions[row.key].append(row)

    def after(self, seq: int) -> Iterator[Row]:
        """The rows after a sequence number, in order."""
        return (row for row in self._log if row.seq > seq)

    def value(self, key: bytes, seq: int, clock_tick_ms: int) -> int | None:
        """What a reader at `seq` must see."""
        versions = reversed(self._versions[key])
        return visible_value(next((row for row in versions if row.seq <= seq), None), clock_tick_ms)
