"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path


def peak_memory_bytes() -> int:
    """Return the high-water mark of this process's resident memory. Linux's `ru_maxrss` is not used where
    avoidable: it includes the parent process's peak, if that was higher."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
