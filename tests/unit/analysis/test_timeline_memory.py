"""A timeline takes the same memory however long the recording is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import peak_memory

TOOLS = Path(__file__).parents[3] / "tools"
FOLD = """
sys.path.insert(0, sys.argv[1])
from bench.synthetic import synthetic_batches
from memexport.analysis.timeline_fold import TimelineFold
from memexport.model import RecordingEnd
from memexport.plot import render_page

info, tables, batches = synthetic_batches(int(sys.argv[2]))
fold = TimelineFold(info, tables)
for batch in batches:
    fold.add(batch)
page = render_page(fold.result(RecordingEnd()))
print(peak_bytes(), len(page))
"""


def folded(operators):
    """The peak of a process that folds so many operators, and the size of the page."""
    code = peak_memory.PEAK_BYTES + FOLD
    done = subprocess.run(
        [sys.executable, "-c", code, TOOLS, str(operators)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return map(int, done.stdout.split())


def test_eight_times_the_events_take_no_more_memory_and_make_no_larger_page():
    few, small_page = folded(50_000)
    many, large_page = folded(400_000)
    assert many < few + 30_000_000
    assert large_page < 2 * small_page
    assert large_page < 3_000_000
