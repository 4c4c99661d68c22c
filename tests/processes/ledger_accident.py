"""One ledger of three is damaged while one process works on all three.

1. `lithify worker` serves two databases and a table; the damaged one stands first or last in its list.
2. In the middle of its compaction the newest ledger of one database becomes junk (`tests.processes.ledgers`).
3. The worker must say so once, show it in its metrics, and go on with the other two: the other database is
   committed, and so is what the table gets after the damage.
4. The ledger is restored. The worker and the coordinator, which live on, must finish and commit the
   compaction, each range once; the metric falls back.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.compacting import dataset_at
from tests.engine.waiting import wait_until
from tests.processes.accidents import LIMIT_S, NEVER_MS, Outcome, Stage, assert_life, name_of, wrote
from tests.processes.history import check_protocol, history, recorded
from tests.processes.lakes import Lake
from tests.processes.ledgers import damage, restore
from tests.processes.nodes import Process


def damage_a_ledger(stage: Stage, other: Path, lake: Lake, *, place: int) -> Outcome:
    """Damage the ledger of the stage's database, which has that place among the three."""
    lake.add()
    coordinator = stage.coordinator(NEVER_MS)
    others = replace(stage, path=other).coordinator(NEVER_MS)
    tables = stage.nodes.command(
        "coordinator", lake.url, "--log-format", "json", environment=lake.environment
    )
    urls = [str(other), lake.url]
    urls.insert(place, str(stage.path))
    worker = stage.service(*urls, "--metrics-port", "0", environment=lake.environment)
    compaction_id = stage.wait_for_the_middle()
    url = dataset_at(stage.path).url
    wait_until(lambda: lake.is_compacted, LIMIT_S)
    assert quarantined(worker).get(url, 0) == 0
    assert not others.events("Committed"), "the other is to be in its middle too"

    before = recorded(stage.compaction())
    at_s = time.monotonic()
    junk = damage(stage.path / "compactions")
    wait_until(lambda: worker.events("Quarantined"), LIMIT_S)
    assert quarantined(worker)[url] == 1
    lake.add()
    wait_until(lambda: others.events("Committed"), LIMIT_S)
    wait_until(lambda: lake.is_compacted, LIMIT_S)
    assert {value for name, value in quarantined(worker).items() if name != url} <= {0}
    assert not coordinator.events("Committed")
    assert [process.exit_code for process in (coordinator, others, tables, worker)] == [None] * 4

    restore(junk)
    stage.wait_for_commit(coordinator, compaction_id)
    taken_s = time.monotonic() - at_s
    wait_until(lambda: worker.events("Recovered"), LIMIT_S)
    wait_until(lambda: quarantined(worker)[url] == 0, LIMIT_S)
    (said,) = worker.events("Quarantined")
    assert (said["dataset"], said["level"], junk.name in said["reason"]) == (url, "error", True)
    assert not worker.events("AttemptFailed")
    assert_life(stage, compaction_id, name_of(worker, compaction_id))
    check_protocol(history(stage.path))
    check_protocol(history(other))
    lake.check()
    finished = [e["index"] for e in worker.events("RangeFinished") if e["compaction"] == compaction_id]
    assert sorted(finished) == sorted(wrote(worker, compaction_id)), "each range finishes once"
    return Outcome(len(finished), len(before), len(finished) - len(before), commit_after_s=taken_s)


def quarantined(worker: Process) -> dict[str, float]:
    """The metric `lithify_quarantined`, by dataset."""
    lines = [json.loads(line) for line in worker.errors.splitlines() if line.startswith("{")]
    (url,) = [line["url"] for line in lines if line["message"] == "metrics are served"]
    with urlopen(url, timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    return {
        sample.labels["dataset"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "lithify_quarantined"
    }
