"""How fast a snapshot of torch's CUDA allocator is read, and in how much memory, beside `pickle.load`.

    python tools/bench/snapshot.py [--events 1000000]

The snapshot is synthetic, as torch 2.10 writes one: 495 frames in 3000 stacks of 10 to 40, every third
entry with the list of frames of the one before, a metadata string each. Each figure is of a process of its
own: processor time, and the peak of the resident memory less what it was before.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def make(path: Path, events: int) -> None:
    """Write a snapshot of so many trace entries."""
    gc.disable()
    chance = random.Random(1)  # noqa: S311 - the same snapshot each time is the point
    frames = [{"name": f"f{n}", "filename": f"/model/{n}.py", "line": n} for n in range(495)]
    stacks = [chance.choices(frames, k=chance.randrange(10, 40)) for _ in range(3_000)]
    live: list[tuple[int, int]] = []
    pending: list[tuple[int, int]] = []
    trace = [entry(number, chance, live, pending) for number in range(events)]
    for number, made in enumerate(trace):
        made["frames"] = trace[number - 1]["frames"] if number % 3 == 2 else list(chance.choice(stacks))
    snapshot = {"segments": [], "device_traces": [trace]}
    with path.open("wb") as stream:
        pickle.dump(snapshot, stream)


def entry(
    number: int, chance: random.Random, live: list[tuple[int, int]], pending: list[tuple[int, int]]
) -> dict[str, Any]:
    """The next entry: an allocation, or one half of the release of one of a thousand that are live."""
    if pending:
        (address, size), action = pending.pop(), "free_completed"
    elif len(live) > 1_000:
        (address, size), action = live.pop(chance.randrange(len(live))), "free_requested"
        pending.append((address, size))
    else:
        address, size, action = 0x7F0000000000 + number * 512, chance.randrange(1, 1 << 24), "alloc"
        live.append((address, size))
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + 3 * number,
        # torch makes these strings anew for each entry, and so does this.
        "compile_context": "/".join(("N", "A")),
        "user_metadata": f"step {number // 1_000}",
    }


def load(path: Path) -> object:
    """Let Python's pickle make all objects."""
    with path.open("rb") as stream:
        return pickle.load(stream)  # noqa: S301 - this program wrote it


def read(path: Path) -> object:
    """Make columns of it."""
    from memexport.model import Tables
    from memexport.sources._snapshot_pickle import read_snapshot

    return read_snapshot(path, Tables())


def convert(path: Path) -> object:
    """All the way to a Perfetto trace."""
    import memexport

    memexport.convert(path, path.with_suffix(".pftrace"), overwrite=True)
    return None


ROWS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "pickle.load": ("", load),
    "read_snapshot": ("≤ 0.5 and ≤ 0.5", read),
    "convert to .pftrace": ("", convert),
}


def peak_bytes() -> int:
    """The most memory that this process ever had resident. Linux counts kibibytes, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(name: str, path: Path) -> dict[str, float]:
    """Processor seconds and bytes of one row."""
    import memexport.sources._snapshot_pickle  # noqa: F401 - what is imported is not counted

    before, start = peak_bytes(), time.process_time()
    kept = ROWS[name][1](path)
    seconds = time.process_time() - start
    del kept
    return {"seconds": seconds, "bytes": peak_bytes() - before}


def report(path: Path) -> None:
    """Measure each row in a process of its own, and print."""
    size = path.stat().st_size
    print(f"{size / 1e6:.0f} MB")
    print(f"{'':22}{'seconds':>9}{'MB':>7}{'of pickle.load':>16}{'of the file':>13}  target")
    first = 0.0
    for name, (target, _) in ROWS.items():
        command = [sys.executable, __file__, "--measure", name, str(path)]
        done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        first = first or done["seconds"]
        ratios = f"{done['seconds'] / first:16.2f}{done['bytes'] / size:13.2f}"
        print(f"{name:22}{done['seconds']:9.2f}{done['bytes'] / 1e6:7.0f}{ratios}  {target}", flush=True)


def main() -> None:
    """Measure; or, as a child of that, do one thing and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, metavar=("ROW", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], Path(options.measure[1]))))
    elif options.make:
        make(options.make, options.events)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            # A child's peak begins at what its parent has resident when it starts it.
            command = [sys.executable, __file__, "--make", str(path), "--events", str(options.events)]
            subprocess.run(command, check=True)
            report(path)


if __name__ == "__main__":
    main()
