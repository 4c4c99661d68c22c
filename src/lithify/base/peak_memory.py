"""How much memory this process has had at most."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path


def peak_memory_bytes() -> int:
    """High-water mark of this process's resident memory.

    Linux says in `ru_maxrss` what the process that started this one had, if that was more.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
