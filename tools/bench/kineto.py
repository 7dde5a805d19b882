"""How fast a torch.profiler trace is read and converted, beside `json.load` and a loop over its events.

    python tools/bench/kineto.py [--megabytes 200]

The trace is a real one (`tests/data/kineto`: torch 2.13, with stacks, shapes, modules, memory), repeated at
later times. Each measurement is a process of its own, which reports the peak of its resident memory. Targets:
≥ 3× the speed of the loop, which only adds up bytes, and ≤ 1 GB with the conversion, at any size.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "tests" / "data" / "kineto" / "torch-2.13-cpu.json.gz"
REPEAT_AFTER_US = 5_000
TARGET_RATIO = 3
TARGET_MB = 1_000


def make(path: Path, megabytes: float) -> None:
    """Write a trace of about this size."""
    text = gzip.decompress(SAMPLE.read_bytes())
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    events = text[begin:end].rstrip()
    with path.open("wb") as file:
        file.write(text[:begin])
        for round_ in range(max(1, round(megabytes * 1e6 / len(events)))):
            if round_:
                file.write(b",")
            file.write(_later(events, round_))
        file.write(text[end:])


def _later(events: bytes, rounds: int) -> bytes:
    """The events at later times; all else is the same to everyone who reads it."""
    shift_us = rounds * REPEAT_AFTER_US

    def shifted(found: re.Match[bytes]) -> bytes:
        return b'"ts": %d.%b' % (int(found[1]) + shift_us, found[2])

    return re.sub(rb'"ts": (\d+)\.(\d+)', shifted, events)


def load_and_loop(path: str) -> None:
    """The least that a script does: add up what is allocated."""
    with open(path, "rb") as file:  # noqa: PTH123 - as a script would
        events = json.load(file)["traceEvents"]
    allocated = highest = 0
    for event in sorted(
        (event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]
    ):
        allocated += event["args"]["Bytes"]
        highest = max(highest, allocated)


def read(path: str) -> None:
    """Read it as a source, to the end."""
    from memexport.sources.kineto import KinetoSource

    for _ in KinetoSource(path).batches():
        pass


def convert(path: str) -> None:
    """Convert it for Perfetto."""
    import memexport

    memexport.convert(path, Path(path).with_suffix(".pftrace"), overwrite=True)


MEASURED = {
    "json.load and a loop": load_and_loop,
    "memexport's source": read,
    "converted to .pftrace": convert,
}


def measure(name: str, path: str) -> dict[str, float]:
    """Seconds, and the most memory that this process ever had resident."""
    start = time.perf_counter()
    MEASURED[name](path)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kibibytes, macOS bytes.
    return {"seconds": seconds, "mb": peak * (1 if sys.platform == "darwin" else 1024) / 1e6}


def in_child(name: str, path: Path) -> dict[str, float]:
    """What another run of this program measures.

    A child's peak begins at what its parent has resident when it starts it, so this process stays small.
    """
    command = [sys.executable, __file__, "--measure", name, str(path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(printed)
    return result


def report(megabytes: float) -> None:
    """Print a line for each way to read the trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        make(path, megabytes)
        size_mb = path.stat().st_size / 1e6
        print(f"a trace of {size_mb:.0f} MB")
        print(f"{'':24}{'seconds':>9}{'MB/s':>7}{'× loop':>8}{'target':>8}{'peak MB':>9}{'target':>8}")
        loop_s = 0.0
        for name in MEASURED:
            done = in_child(name, path)
            loop_s = loop_s or done["seconds"]
            seconds, ours = done["seconds"], name != "json.load and a loop"
            ratio_target, mb_target = (f"≥ {TARGET_RATIO}", f"≤ {TARGET_MB}") if ours else ("", "")
            print(
                f"{name:24}{seconds:9.2f}{size_mb / seconds:7.0f}{loop_s / seconds:8.1f}{ratio_target:>8}"
                f"{done['mb']:9.0f}{mb_target:>8}",
                flush=True,
            )


def main() -> None:
    """Measure; or, as a child of that, do one thing and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
    else:
        report(options.megabytes)


if __name__ == "__main__":
    main()
