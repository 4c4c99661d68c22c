"""The process that forks Python workers."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lithify.engine.daemon import prefer_unpacked_pyspark
from lithify.engine.spark import SparkEngine
from tests.engine import tasks
from tests.engine.waiting import LIMIT_S, child_environment

PRELOAD = "from lithify.engine.daemon import _output_kept_for_spark, preload\n"


def run(code: str) -> tuple[str, str]:
    answer = subprocess.run(
        [sys.executable, "-c", PRELOAD + code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env=child_environment(),
    )
    return answer.stdout, answer.stderr


@pytest.mark.parametrize("hook", ["no_colon", "no.such.package:hook", "tests.engine.tasks:no_such_hook"])
def test_failing_preload_is_reported_and_survived(hook: str) -> None:
    out, err = run(f"preload({hook!r}); print('alive')")
    assert out == "alive\n"
    assert f"preload {hook} failed" in err


def test_each_of_several_hooks_is_called() -> None:
    hooks = "no.such.package:hook,tests.engine.tasks:preload_hook"
    out, err = run(f"preload({hooks!r})\nfrom tests.engine import tasks; print(tasks.preloaded)")
    assert "preload no.such.package:hook failed" in err
    assert out.endswith("True\n")


def test_preload_does_what_the_hook_says_and_keeps_standard_output_clean() -> None:
    code = (
        "with _output_kept_for_spark():\n"
        "    preload('tests.engine.tasks:preload_hook')\n"
        "    import os; os.write(1, b'from below Python')\n"
        "from tests.engine import tasks; print(tasks.preloaded)"
    )
    out, err = run(code)
    assert out == "True\n"
    assert "preload hook that prints" in err
    assert "from below Python" in err


def serve(hook: str) -> subprocess.CompletedProcess[bytes]:
    """What a daemon answers that is told to end at once, by a closed standard input."""
    return subprocess.run(
        [sys.executable, "-m", "lithify.engine.daemon", "pyspark.worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        env=child_environment() | {"LITHIFY_PRELOAD": f"tests.engine.tasks:{hook}"},
    )


@pytest.mark.parametrize(("hook", "is_kept"), [("preload_hook", True), ("threading_hook", False)])
def test_hook_that_starts_threads_is_left_out_and_the_daemon_still_serves(hook: str, is_kept: bool) -> None:
    answer = serve(hook)
    assert 0 < int.from_bytes(answer.stdout, "big") < 65536  # its port and nothing else
    assert (b"started threads" not in answer.stderr) is is_kept


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_workers_inherit_one_heap() -> None:
    """Though what is imported for them has had threads."""
    said = serve("memory_hook").stderr
    assert b"Arena 0" in said
    assert b"Arena 1" not in said


def test_zipped_pyspark_is_left_out_only_beside_its_own_package(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "pyspark"
    archive = package / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    (package / "worker.py").touch()
    other = str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    site = str(package.parent)
    assert prefer_unpacked_pyspark([str(archive), other, site]) == [other, site]
    assert prefer_unpacked_pyspark([str(archive), other]) == [str(archive), other]


def test_workers_of_the_shared_session_are_forked_from_our_daemon(spark_engine: SparkEngine) -> None:
    assert spark_engine.submit("daemon", tasks.daemon_has_numba, 0).result(LIMIT_S)


def test_a_collection_after_a_task_spares_what_was_preloaded(spark_engine: SparkEngine) -> None:
    walked, spared = spark_engine.submit("gc", tasks.objects_a_collection_walks_through, None).result(LIMIT_S)
    assert 0 < 10 * walked < spared
