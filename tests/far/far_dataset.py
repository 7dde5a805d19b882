"""A dataset of real and of extreme recordings, and what DuckDB says of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
from rank_recordings import START, recorded

from memexport.exporters import FileDestination
from memexport.exporters.archive import ArchiveExporter
from memexport.model import Device, EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

DOCS = Path(__file__).parents[2] / "docs"
RANKS = 4
EXTREME = RANKS
"""The rank whose recording has what readers stumble over."""

# Rank 2 has more to do than the others.
SCRIPT = """
import os
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
rows = 512 if os.environ["RANK"] == "2" else 64
for _ in range(3):
    model(torch.ones(rows, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PER_RANK = """
    SELECT rank, count(*), count(DISTINCT name), count(module), count(step), sum(size_bytes), max(address),
           sum(duration_ns), min(time_unix_ns), max(time_unix_ns)
    FROM events GROUP BY rank ORDER BY rank
"""
PEAK = f"""
    SELECT rank, device, module, name, phase, step, allocated_bytes
    FROM events WHERE kind IN ('operator', 'allocation') AND rank < {EXTREME}
    ORDER BY allocated_bytes DESC NULLS LAST, time_unix_ns LIMIT 1
"""


class Dataset(NamedTuple):
    """A folder with a dataset of ranks in `dataset/`, and what DuckDB says of it.

    Attributes:
        per_rank, peak: the rows that DuckDB gives for `PER_RANK` and `PEAK`.
    """

    folder: Path
    per_rank: list[tuple[object, ...]]
    peak: list[tuple[object, ...]]


def write_dataset(folder: Path) -> Dataset:
    """Four ranks that trained, and one made up, by rank."""
    (folder / "train.py").write_text(SCRIPT)
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    memexport(folder, *ranks, "-m", "memexport", "run", "--stacks", "-o", "run-{rank}.memx", "train.py")
    _extreme(folder / f"run-{EXTREME}.memx")
    names = [f"run-{rank}.memx" for rank in range(RANKS + 1)]
    memexport(folder, "memexport", "convert", *names, "--to", "parquet", "--by-rank", "-o", "dataset/")
    files = f"read_parquet('{folder}/dataset/**/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as connection:
        connection.sql(f"CREATE VIEW events AS SELECT * FROM {files}")
        return Dataset(folder, connection.sql(PER_RANK).fetchall(), connection.sql(PEAK).fetchall())


def write_without_rank(folder: Path) -> Path:
    """A dataset of rank 3 and of a recording that knows no rank."""
    for name, rank in (("run-3.memx", 3), ("other.memx", None)):
        recorded(folder / name, rank, 1 << 20, None)
    arguments = ["convert", "run-3.memx", "other.memx", "--to", "parquet", "--by-rank", "-o", "dataset/"]
    memexport(folder, "memexport", *arguments)
    return folder / "dataset"


def memexport(folder: Path, module: str, *arguments: str) -> None:
    """Run a module in the folder; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def shown(page: str, name: str, folder: Path) -> str:
    """The program that a page in docs/ gives this name, with the folder's dataset.

    Its path is whole: what Spark and Ray have started stays in the folder that it was started in.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^<!-- file: {re.escape(name)} -->\n```python\n(.*?)^```$", text, re.M | re.S)
    assert found, f"{page} has no {name}"
    return found[1].replace('"dataset/"', repr(f"{folder}/dataset/"))


def _extreme(path: Path) -> None:
    """The largest numbers, text beyond ASCII, and nulls wherever there can be one."""
    info, tables = RecordingInfo(rank=EXTREME, devices=[Device("cuda", 0)]), Tables()
    name, module = tables.strings.intern("aten::mm"), tables.strings.intern("nét.層\n1")
    events = EventBatch(
        kind=[EventKind.ALLOCATION, EventKind.OPERATOR, EventKind.RELEASE],
        time_unix_ns=[START + 1, START + 3, START + 7],
        duration_ns=[-1, 5, -1],
        name=[0, name, 0],
        module=[module, module, 0],
        phase=[1, 0, 2],
        category=[1, 2, 0],
        device=[0, -1, 0],
        step=[0, -1, -1],
        rank=EXTREME,
        size_bytes=[2**62, 5, 7],
        allocated_bytes=[2**62, -1, 0],
        address=np.array([2**63 + 5, 0, 2**64 - 1], np.uint64),
    )
    exporter = ArchiveExporter(FileDestination(path))
    exporter.begin(info, tables)
    exporter.write(events)
    exporter.end(RecordingEnd())
