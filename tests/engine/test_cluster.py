"""The engine on a standalone cluster of a master and two workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import cluster_conf, standalone_cluster
from tests.engine.waiting import child_environment

PROGRAM = f"""
import sys
from lithify.engine.spark import SparkEngine
from tests.engine import tasks
with SparkEngine(sys.argv[1], conf={cluster_conf()!r}, preload="tests.engine.tasks:preload_hook") as engine:
    assert engine.submit("job", tasks.double, 21).result() == 42
    assert engine.submit("job", tasks.was_preloaded, 0).result()
    assert engine.slots == 2, engine.slots
    others = [engine.submit("other", tasks.double, i) for i in range(6)]
    text, executor = engine.submit("killed", tasks.kill_executor_once, sys.argv[2]).result()
    assert text == "survived"
    assert tasks.attempts(sys.argv[2]) == 2
    assert [future.result() for future in others] == [2 * i for i in range(6)]
    print("passed")
"""


@pytest.mark.whole
def test_task_of_a_killed_executor_runs_again_elsewhere(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    with standalone_cluster(tmp_path) as master:
        # A process of its own, because this one may already have the shared local session.
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM, master, str(attempts)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=child_environment(),
        )
    assert (answer.stderr, answer.stdout, answer.returncode) == ("", "passed\n", 0)
