"""CSV: what Python's reader gets back is what JSON lines say."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_recordings import Made, two_steps

from memexport.exporters.csv import CsvExporter, field
from memexport.exporters.jsonl import JsonlExporter
from memexport.model import Category, EventKind


def rows(path: Path) -> list[dict[str, str]]:
    """As the csv module reads them."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream, strict=True))


def test_it_has_the_columns_and_values_of_json_lines(tmp_path: Path) -> None:
    """An unknown value is an empty field."""
    written = rows(two_steps().write(CsvExporter, tmp_path / "a.csv", size=7))
    as_json = two_steps().write(JsonlExporter, tmp_path / "a.jsonl").read_text().splitlines()
    expected = [
        {key: "" if value is None else str(value) for key, value in json.loads(line).items()}
        for line in as_json
    ]
    assert written == expected
    assert list(written[0]) == list(expected[0])


def test_it_is_what_pythons_own_writer_writes(tmp_path: Path) -> None:
    """Byte for byte: quotes only where they are needed, lines that end as RFC 4180 says."""
    made = two_steps()
    made.operator('a "b", c\nd', 0, 0, module="näme 🧠", size_bytes=-1, device=0)
    content = made.write(CsvExporter, tmp_path / "a.csv").read_bytes()
    again = io.StringIO()
    csv.writer(again).writerows(csv.reader(io.StringIO(content.decode(), newline="")))
    assert again.getvalue().encode() == content


def test_gz_holds_the_same_text(tmp_path: Path) -> None:
    """The suffix says whether it is gzipped."""
    plain = two_steps().write(CsvExporter, tmp_path / "a.csv").read_bytes()
    assert gzip.decompress(two_steps().write(CsvExporter, tmp_path / "a.csv.gz").read_bytes()) == plain


def test_extreme_values_come_back(tmp_path: Path) -> None:
    """An address of 64 bits and a negative size are numbers, not formulas."""
    made = Made()
    made.operator("x", 0, 0, size_bytes=-5, address=2**64 - 1, category=Category.OTHER, device=0)
    (row,) = rows(made.write(CsvExporter, tmp_path / "a.csv"))
    assert (row["size_bytes"], row["address"], row["category"]) == ("-5", str(2**64 - 1), "other")


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\t=1", "\r=1"])
def test_a_name_cannot_become_a_formula(name: str, tmp_path: Path) -> None:
    """An apostrophe in front makes it text for every spreadsheet."""
    made = Made()
    made.operator(name, 0, 0)
    (row,) = rows(made.write(CsvExporter, tmp_path / "a.csv"))
    assert row["name"] == f"'{name}"


def test_shapes_and_stacks_are_columns_where_they_were_recorded(tmp_path: Path) -> None:
    """A stack is one field of several lines, innermost first; a marker's trace context is no input."""
    made = Made(options={"record_shapes": "true", "record_stacks": "true"})
    intern = made.tables.strings.intern
    stack = made.tables.stacks.intern([intern("a.py:1:main"), intern("b.py:2:step")])
    made.operator("mm", 0, 0, inputs=intern("float32[8, 64], int64[8]"), stack=stack)
    made.add(EventKind.MARKER, 5, inputs=intern("00-11-22-01"))
    operator, marker = rows(made.write(CsvExporter, tmp_path / "a.csv"))
    assert (operator["inputs"], operator["stack"]) == ("float32[8, 64], int64[8]", "b.py:2:step\na.py:1:main")
    assert (marker["inputs"], marker["stack"]) == ("", "")


def test_an_empty_recording_has_the_columns_only(tmp_path: Path) -> None:
    """One line."""
    content = Made().write(CsvExporter, tmp_path / "a.csv").read_text()
    assert content.startswith("kind,time_unix_ns,")
    assert len(content.splitlines()) == 1


def test_half_a_surrogate_pair_is_written_as_its_escape(tmp_path: Path) -> None:
    """A file name may be no Unicode."""
    made = Made()
    made.operator("a\udcff", 0, 0)
    (row,) = rows(made.write(CsvExporter, tmp_path / "a.csv"))
    assert row["name"] == "a\\udcff"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_comes_back_but_for_the_apostrophe(text: str) -> None:
    """Whatever is in it."""
    line = io.StringIO(f"x,{field(text)}\r\n", newline="")
    _, read = next(csv.reader(line, strict=True))
    assert read in (text, f"'{text}")
