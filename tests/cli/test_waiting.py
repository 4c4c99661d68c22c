"""A command whose store is away: what is said, and what Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.s3 import store_options


def test_it_says_why_it_waits_and_an_interrupt_ends_it() -> None:
    """It would wait for five minutes."""
    options = [f"--store-option={k}={v}" for k, v in store_options("http://127.0.0.1:1").items()]
    command = [sys.executable, "-m", "lithify", "plan", *options, "s3://bucket/db"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ.copy()) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, rest
    assert "waiting for the store s3://bucket for" in said
    assert "onnection refused" in said
    assert rest.startswith("Stopped.")
