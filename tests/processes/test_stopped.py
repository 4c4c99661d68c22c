"""A command that is told to stop by SIGTERM, as by Ctrl-C: it gives back what it holds."""

from __future__ import annotations

from pathlib import Path

from lithify.protocol.model import CompactionState
from tests.compacting import dataset_at
from tests.engine.waiting import wait_until
from tests.flaky import FAIR
from tests.processes.nodes import nodes_in
from tests.processes.outages import FAR, LIMIT_S, Subjects, subjects


def stop(these: Subjects, logs: Path) -> None:
    """Begin to compact the database, and stop in the middle."""
    these.site.server.weather = FAR
    with nodes_in(logs) as nodes:
        command = nodes.command("compact", these.urls[0], environment=these.environment)
        wait_until(lambda: bool(command.events("Claimed")) or command.exit_code is not None, LIMIT_S)
        assert command.exit_code is None, command.errors
        assert command.terminate() == 143, command.errors
        assert "Stopped. Finished work is recorded" in command.errors
    these.site.server.weather = FAIR


def test_sigterm_gives_the_lease_and_the_claims_back(tmp_path: Path) -> None:
    with subjects() as these:
        stop(these, tmp_path / "stopped")
        dataset = dataset_at(these.urls[0], store_options=these.site.options)
        ledger, lease = dataset.ledger(), dataset.lease.read()
        assert ledger is not None
        assert [(c.state, c.worker) for c in ledger.compactions] == [(CompactionState.SCHEDULED, None)]
        assert lease is not None
        assert lease.lease is not None
        assert lease.lease.is_ended
        with nodes_in(tmp_path / "again") as nodes:
            again = nodes.command("compact", these.urls[0], environment=these.environment)
            assert again.wait(LIMIT_S) == 0, again.errors
            assert "may still be running" not in again.errors
        these.check_database()
