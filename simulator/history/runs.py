"""Who runs the expiry: coordinators, again and again, and a person, by hand."""

from __future__ import annotations

from lithify.base.errors import LithifyError
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome
from simulator.history.judge import Judge
from simulator.history.people import now_and_then
from simulator.history.world import Process


def run_coordinator(process: Process) -> None:
    """What a coordinator does of its own accord."""
    scenario = process.world.scenario
    runs = Runs(process)
    now_and_then(process, scenario.run_pause_ms, lambda: runs.run(ExpireOptions(grace_ms=scenario.grace_ms)))


def run_by_hand(process: Process, judge: Judge) -> None:
    """A person who wants less to be kept than the table says, or only looks, or accepts what is lost."""
    scenario, rng = process.world.scenario, process.rng
    if not scenario.by_hand_pause_ms:
        return

    def run() -> None:
        process.count("event: expired by hand")
        accepts = judge.was_removed and rng.random() < 0.3
        options = ExpireOptions(
            older_than_ms=process.world.now_ms - rng.choice((0, scenario.max_age_ms // 2)),
            retain_last=rng.choice((None, 1, 2)),
            grace_ms=scenario.grace_ms,
            dry_run=not accepts and rng.random() < 0.2,
            accept_loss=accepts,
        )
        if accepts:
            judge.accepted()
        Runs(process).run(options)

    now_and_then(process, scenario.by_hand_pause_ms, run)


class Runs:
    """The runs of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._expirer: Expirer | None = None

    def run(self, options: ExpireOptions) -> ExpiryOutcome | None:
        """One run; what came of it."""
        process = self._process
        process.run_began_ms = process.world.now_ms
        try:
            if self._expirer is None:
                self._expirer = Expirer(process.dataset(), process.clock, process.ids, process.rng)
            done = self._expirer.run(options)
        except LithifyError as error:
            process.count(f"event: run ended by {type(error).__name__}")
            raise
        finally:
            process.run_began_ms = None
        if options.dry_run:
            return None
        process.count(f"outcome: {done.outcome}")
        for kind, count in done.deleted.items():
            process.world.counts[f"deleted: {kind}"] += count
        if process.world.is_traced:
            process.log(f"{done.outcome}: {done.why} expired={done.expired} refs={done.refs} {done.notes}")
        return done.outcome
