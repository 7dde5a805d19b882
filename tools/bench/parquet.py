"""How fast events become Parquet, and Arrow and pandas tables, next to the same rows made from Python dicts.

    python tools/bench/parquet.py [--operators 200000] [--repeat 3] [--synthetic]

The peer is what one would write by hand: `pyarrow.Table.from_pylist` of the lines of JSONL as dicts, written
by pyarrow, compressed alike. The dicts are there already when it starts. The best of the repeats counts,
for both, in processor time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from exporters import export, seconds
from recorded import recorded_batches
from synthetic import synthetic_batches

import memexport
from memexport.exporters import FileDestination
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.jsonl import JsonlExporter
from memexport.exporters.parquet import ParquetExporter

TARGET = "≥ 1 million"


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--synthetic", action="store_true", help="not a real recording but a made-up stream")
    options = parser.parse_args()
    info, tables, batches = (synthetic_batches if options.synthetic else recorded_batches)(options.operators)
    events = list(batches)
    count = sum(map(len, events))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines, archive, ours, theirs = (
            folder / part for part in ("a.jsonl", "a.memx", "a.parquet", "b.parquet")
        )
        export(JsonlExporter(FileDestination(lines)), info, tables, events)
        export(ArchiveExporter(FileDestination(archive)), info, tables, events)
        rows = [json.loads(line) for line in lines.read_bytes().splitlines()]

        def write() -> None:
            export(ParquetExporter(FileDestination(ours, overwrite=True)), info, tables, events)

        def write_dicts() -> None:
            pq.write_table(pa.Table.from_pylist(rows), theirs, compression="zstd")

        def convert() -> None:
            memexport.convert(archive, ours, overwrite=True)

        def table(how: str) -> Callable[[], object]:
            return lambda: getattr(memexport.open(archive), how)()

        actions: dict[str, Callable[[], object]] = {
            "events to .parquet": write,
            "dicts to .parquet (peer)": write_dicts,
            ".memx to .parquet": convert,
            ".memx to Arrow": table("to_arrow"),
            ".memx to pandas": table("to_pandas"),
            ".memx to Polars": table("to_polars"),
        }
        for action in actions.values():
            action()  # first imports do not count
        took = dict(zip(actions, seconds(options.repeat, *actions.values()), strict=True))
        peer = took["dicts to .parquet (peer)"]
        print(f"{count:,} events\n{'':28}{'seconds':>9}{'events/s':>14}{'× peer':>8}  target")
        for label, spent in took.items():
            target = TARGET if label == "events to .parquet" else ""
            print(f"{label:28}{spent:9.2f}{count / spent:14,.0f}{peer / spent:8.1f}  {target}")
        print(f"bytes/event: {ours.stat().st_size / count:.1f}, peer {theirs.stat().st_size / count:.1f}")


if __name__ == "__main__":
    main()
