"""The most memory that a process of its own has had resident, for programs that tests start."""

from __future__ import annotations

PEAK_BYTES = """
import resource, sys
from pathlib import Path

def peak_bytes():
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says begins with the peak of the process that started this one.
        return next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM")) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)
"""
"""Python code that defines `peak_bytes()`; to be put before a program's own."""
