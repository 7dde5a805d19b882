"""JSON lines: every key, in one order, null for what is not known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from made_recordings import Made, two_steps

from memexport.exporters.jsonl import JsonlExporter
from memexport.model import Category, EventKind

GOLDEN = Path(__file__).parents[2] / "golden" / "two_steps.jsonl"
KEYS = [
    *("kind", "time_unix_ns", "duration_ns", "name", "module", "phase", "category", "device", "step", "rank"),
    *("thread", "size_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "address"),
]


def test_two_steps_are_written_as_agreed(tmp_path: Path) -> None:
    """The whole file, byte for byte."""
    path = two_steps().write(JsonlExporter, tmp_path / "two.jsonl", size=7)
    assert path.read_text() == GOLDEN.read_text()


def test_gz_holds_the_same_text(tmp_path: Path) -> None:
    """The suffix says whether it is gzipped."""
    path = two_steps().write(JsonlExporter, tmp_path / "two.jsonl.gz", size=7)
    assert gzip.decompress(path.read_bytes()).decode() == GOLDEN.read_text()


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    """An event of which only kind and time are known."""
    made = Made()
    made.add(EventKind.SAMPLE, 0)
    line = json.loads(made.write(JsonlExporter, tmp_path / "one.jsonl").read_text())
    assert list(line) == KEYS
    assert {key for key, value in line.items() if value is not None} == {"kind", "time_unix_ns"}


def test_a_modules_call_and_a_traced_marker_have_keys_of_their_own(tmp_path: Path) -> None:
    made = Made()
    made.span("Linear", 0, 5, module="layer", input_bytes=512)
    made.marker("step", 7, inputs=made.tables.strings.intern("00-trace-01"))
    made.add(EventKind.SAMPLE, 8)
    path = made.write(JsonlExporter, tmp_path / "three.jsonl")
    call, marker, sample = map(json.loads, path.read_text().splitlines())
    assert list(call) == [*KEYS, "input_bytes", "output_bytes"]
    assert (call["input_bytes"], call["output_bytes"]) == (512, None)
    assert list(marker) == [*KEYS, "traceparent"]
    assert marker["traceparent"] == "00-trace-01"
    assert list(sample) == KEYS


def test_extreme_values_and_names_come_back(tmp_path: Path) -> None:
    """An address of 64 bits, a negative size, and a name that needs quoting."""
    made, name = Made(), 'a "b" \\ 🧠\n%s'
    made.operator(
        name, 0, 0, size_bytes=-1, address=2**64 - 1, category=Category.UNSHARDED_GRADIENT, device=0
    )
    line = json.loads(made.write(JsonlExporter, tmp_path / "one.jsonl").read_text())
    found = {key: line[key] for key in ("name", "size_bytes", "address", "category", "device", "duration_ns")}
    assert found == {
        "name": name,
        "size_bytes": -1,
        "address": 2**64 - 1,
        "category": "unsharded_gradient",
        "device": "cuda:0",
        "duration_ns": 0,
    }


def test_an_empty_recording_has_no_line(tmp_path: Path) -> None:
    """The file is there, and empty."""
    assert Made().write(JsonlExporter, tmp_path / "empty.jsonl").read_bytes() == b""
