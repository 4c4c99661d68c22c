"""What a task reports of its progress."""

from __future__ import annotations

from typing import Any

from lithify.datasets.kafka.cleaning.tasks import Movements, Output
from lithify.service.options import WorkerOptions


class Reports:
    """A reporter that is always due."""

    def __init__(self) -> None:
        self.moved_bytes = 0

    def is_due(self) -> bool:
        return True

    def report(self, bytes_read: int, bytes_written: int) -> None:
        self.moved_bytes = bytes_read + bytes_written


def test_deleting_is_progress_although_it_moves_no_data() -> None:
    """Else a worker that deletes a hundred objects in half a minute would be taken for stuck."""
    reports: Any = Reports()
    movements = Movements(reports)
    movements.requested(100)
    assert reports.moved_bytes >= WorkerOptions().heartbeat_bytes
    result = movements.result(Output("key", 0))
    assert result.bytes_read == result.bytes_written == 0
