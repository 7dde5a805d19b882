"""Put tables between their markers: the formats into README.md, the metrics into docs/opentelemetry.md.

python tools/readme_tables.py           writes them
python tools/readme_tables.py --check   exits with 1 if what is there is not what the code gives
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memexport.exporters._otel_metrics import METRICS, Instrument, Metric

ROOT = Path(__file__).resolve().parent.parent
UNIT_SUFFIXES = {"By": "_bytes", "s": "_seconds"}


class MarkerError(Exception):
    """The text has no place for the table, or more than one."""


def formats_table() -> str:
    """What `memexport formats --markdown` prints."""
    command = [sys.executable, "-m", "memexport", "formats", "--markdown"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    return printed.stdout.strip()


def metrics_table() -> str:
    """Every metric that is exported, and what Prometheus calls it."""
    heading = ("metric", "in Prometheus", "instrument", "unit", "attributes", "what it is")
    rows = (heading, ("---",) * len(heading), *map(_metric_row, METRICS))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def prometheus_name(metric: Metric) -> str:
    """The name that Prometheus, and a Collector's exporter for it, give a metric.

    A histogram in explicit buckets has this name with `_bucket`, `_count` and `_sum`; one in exponential
    buckets just this. https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
    """
    if not metric.unit.startswith("{") and metric.unit not in UNIT_SUFFIXES:
        raise ValueError(f"{metric.name}: what does Prometheus call the unit {metric.unit}?")
    total = "_total" if metric.instrument is Instrument.COUNTER else ""
    return prometheus_label(metric.name) + UNIT_SUFFIXES.get(metric.unit, "") + total


def prometheus_label(attribute: str) -> str:
    """The label that an attribute becomes."""
    return attribute.replace(".", "_")


def _metric_row(metric: Metric) -> tuple[str, ...]:
    attributes = " ".join(f"`{attribute}`" for attribute in metric.attributes)
    name, unit = f"`{metric.name}`", f"`{metric.unit}`"
    in_prometheus = f"`{prometheus_name(metric)}`"
    return name, in_prometheus, metric.instrument.value, unit, attributes or "–", metric.description


@dataclass(frozen=True)
class Table:
    """A table, and the file and the markers between which it stands."""

    name: str
    file: Path
    made: Callable[[], str]


TABLES = (
    Table("formats", ROOT / "README.md", formats_table),
    Table("metrics", ROOT / "docs" / "opentelemetry.md", metrics_table),
)


def with_table(text: str, name: str, table: str) -> str:
    """The text with the table between its markers, in place of what was there.

    Raises:
        MarkerError: each marker must be there once, the opening one first.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise MarkerError(f"{marker} must be there once, and is there {text.count(marker)} times")
    before, _, rest = text.partition(begin)
    _, closing, after = rest.partition(end)
    if not closing:
        raise MarkerError(f"{end} stands before {begin}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the tables are current")
    parser.add_argument("readme", type=Path, nargs="?", help="only the table of formats, in this file")
    options = parser.parse_args(arguments)
    chosen = TABLES if options.readme is None else (Table("formats", options.readme, formats_table),)
    failures = [failure for table in chosen for failure in _update(table, check=options.check)]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _update(table: Table, *, check: bool) -> Iterator[str]:
    """Write a table, or only check it; what is wrong with it."""
    text = table.file.read_text(encoding="utf-8")
    try:
        wanted = with_table(text, table.name, table.made())
    except MarkerError as error:
        yield f"{table.file.name}: {error}"
        return
    if text == wanted:
        return
    if check:
        yield (
            f"{table.file.name}: the table of {table.name} is not what the code gives; "
            "run python tools/readme_tables.py"
        )
        return
    table.file.write_text(wanted, encoding="utf-8")
    print(f"wrote {table.file}")


if __name__ == "__main__":
    sys.exit(main())
