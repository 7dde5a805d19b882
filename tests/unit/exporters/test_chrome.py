"""Chrome traces: valid JSON, exact times, and the same slices and counters in Perfetto's importer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_recordings import Made, two_steps
from trace_processor import TraceProcessor

from memexport.exporters.chrome import ChromeExporter
from memexport.model import EventKind

Load = Callable[[Path], TraceProcessor]

GOLDEN = Path(__file__).parents[2] / "golden" / "two_steps.chrome.json"
SLICES = "SELECT ts, dur, name, category, depth FROM slice WHERE category IS NOT NULL ORDER BY ts, depth"
COUNTERS = """
    SELECT t.name, count(*) AS samples, max(value) AS highest FROM counter JOIN counter_track AS t
    ON t.id = track_id GROUP BY 1 ORDER BY 1
"""


def written(made: Made, path: Path, size: int = 1_000) -> dict[str, Any]:
    """The document as JSON."""
    content = made.write(ChromeExporter, path, size).read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return document


def test_two_steps_are_written_as_agreed(tmp_path: Path) -> None:
    """The whole file, byte for byte."""
    path = two_steps().write(ChromeExporter, tmp_path / "two.json", size=7)
    assert path.read_text() == GOLDEN.read_text()


def test_gz_holds_the_same_text(tmp_path: Path) -> None:
    """The suffix says whether it is gzipped."""
    path = two_steps().write(ChromeExporter, tmp_path / "two.json.gz", size=7)
    assert gzip.decompress(path.read_bytes()).decode() == GOLDEN.read_text()


def test_the_importer_finds_slices_counters_and_instants(load_trace: Load, tmp_path: Path) -> None:
    """Nested as modules are, although spans come in later batches than what is in them."""
    processor = load_trace(two_steps().write(ChromeExporter, tmp_path / "two.json", size=7))
    assert processor.import_problems() == []
    rows = [tuple(row.values()) for row in processor.query(SLICES) if row["ts"] < 50_000]
    assert rows == [
        (500, 20_000, "step 0", "step", 0),
        (1_000, 11_000, "forward", "phase", 1),
        (1_100, 10_500, "Net", "module", 2),
        (1_200, 10_000, "net.fc", "module", 3),
        (1_500, 2_000, "aten::addmm", "operator", 4),
        (5_000, 2_000, "aten::relu_", "operator", 4),
        (9_000, 2_000, "prims::sum", "operator", 4),
        (13_000, 500, "validate", "annotation", 1),
    ]
    assert [tuple(row.values()) for row in processor.query(COUNTERS)] == [
        ("cuda:0 allocated bytes", 6, 5608.0),
        ("cuda:0 reserved bytes", 1, float(1 << 20)),
    ]
    assert processor.scalar("SELECT count(*) FROM slice WHERE category IS NULL") == 3


def test_an_empty_recording_is_a_valid_document(load_trace: Load, tmp_path: Path) -> None:
    """It names the process, and says what the recording is."""
    document = written(Made(), tmp_path / "empty.json")
    assert [event["ph"] for event in document["traceEvents"]] == ["M"]
    assert document["displayTimeUnit"] == "ns" and document["otherData"]["producer"] == "test"
    assert load_trace(tmp_path / "empty.json").import_problems() == []


@pytest.mark.parametrize(
    "name", ['"quoted" \\ back', "emoji 🧠", "two\nlines\ttab", "x" * 10_000, "100 %d", "\ud800"]
)
def test_any_name_is_quoted(name: str, tmp_path: Path) -> None:
    """In every place where a name stands."""
    made = Made()
    made.operator(name, 0, 10, module=name, thread=name)
    made.marker(name, 5)
    events = written(made, tmp_path / "names.json")["traceEvents"]
    assert [event["name"] for event in events if event["ph"] in "Xi"] == [name, name]
    assert events[-2]["args"] == {"module": name}
    assert name in [event["args"]["name"] for event in events if event["ph"] == "M"]


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """No counter, no size, no module; an unknown length is drawn as none."""
    made = Made()
    made.add(EventKind.OPERATOR, 1_234_567, -1)
    event = written(made, tmp_path / "one.json")["traceEvents"][-1]
    assert (event["ts"], event["dur"], event["args"]) == (1234.567, 0, {})


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 9))
def test_any_times_come_back(
    load_trace: Load, tmp_path: Path, slices: list[tuple[int, int]], size: int
) -> None:
    """Each slice ends when it did, and begins when it did or, to hold an earlier one, a few ns before."""
    made = Made()
    for number, (begin, length) in enumerate(sorted(slices, key=sum)):
        made.operator(f"s{number}", 100 + begin, length, thread="MainThread")
    (tmp_path / "any.json").unlink(missing_ok=True)
    processor = load_trace(made.write(ChromeExporter, tmp_path / "any.json", size))
    found = {row["name"]: (row["ts"], row["ts"] + row["dur"]) for row in processor.query(SLICES)}
    assert processor.import_problems() == []
    for number, (begin, length) in enumerate(sorted(slices, key=sum)):
        drawn_begin, drawn_end = found.pop(f"s{number}")
        assert drawn_end == 100 + begin + length and 70 + begin <= drawn_begin <= 100 + begin
    assert not found
