"""`memexport query`: SQL about traces and recordings, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys

import pytest

from memexport import pipeline

pytest.importorskip("wasmtime")

CELLS = "SELECT 1 AS one, NULL AS none, 'a,\"b\"' AS words, x'00ff' AS bytes, 1.5 AS half"


@pytest.fixture
def trace(tmp_path, recording):
    """The recording as a trace."""
    path = tmp_path / "run.pftrace"
    pipeline.convert(recording, path)
    return path


def test_a_trace_and_a_recording_give_the_same_answer(memexport_cli, trace, recording):
    sql = "SELECT name, COUNT(*) AS n FROM slice GROUP BY name ORDER BY name"
    answers = {memexport_cli("query", path, sql, "--json").stdout for path in (trace, recording)}
    (answer,) = answers
    assert sum(row["n"] for row in json.loads(answer)) >= 26


def test_json_keeps_types_and_null(memexport_cli, trace):
    (row,) = json.loads(memexport_cli("query", trace, CELLS, "--json").stdout)
    assert row == {"one": 1, "none": None, "words": 'a,"b"', "bytes": "x'00ff'", "half": 1.5}


def test_csv_quotes_what_has_to_be_and_leaves_null_empty(memexport_cli, trace):
    header, row = csv.reader(io.StringIO(memexport_cli("query", trace, CELLS, "--csv").stdout))
    assert header == ["one", "none", "words", "bytes", "half"]
    assert row == ["1", "", 'a,"b"', "x'00ff'", "1.5"]


def test_piped_text_is_plain_columns_with_numbers_to_the_right(memexport_cli, trace):
    sql = "SELECT 'short' AS name, 7 AS n UNION ALL SELECT 'a longer name', 1234 UNION ALL SELECT 'x', NULL"
    assert memexport_cli("query", trace, sql).stdout.splitlines() == [
        "name              n",
        "short             7",
        "a longer name  1234",
        "x              NULL",
    ]


def test_no_rows_still_say_the_columns(memexport_cli, trace):
    nothing = "SELECT 1 AS a, 2 AS b WHERE 0"
    assert memexport_cli("query", trace, nothing).stdout == "a  b\n"
    assert memexport_cli("query", trace, nothing, "--json").stdout == "[]\n"
    assert memexport_cli("query", trace, nothing, "--csv").stdout == "a,b\n"


def test_a_name_in_a_trace_cannot_steer_the_terminal(memexport_cli, trace):
    result = memexport_cli("query", trace, "SELECT char(27) || '[2J' AS x")
    assert "\x1b" not in result.stdout


def test_a_terminal_gets_a_table(trace):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "memexport", "query", str(trace), "SELECT 7 AS seven, NULL AS none"]
    done = subprocess.run(
        command, stdout=theirs, stderr=subprocess.PIPE, timeout=120, env={**os.environ, "TERM": "xterm"}
    )
    assert done.returncode == 0, done.stderr
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "┃" in shown and "seven" in shown and "NULL" in shown


def test_the_sql_may_be_in_a_file_and_several_statements(memexport_cli, trace, tmp_path):
    (tmp_path / "q.sql").write_text("CREATE PERFETTO TABLE t AS SELECT 3 AS x;\nSELECT x * 2 AS y FROM t;\n")
    result = memexport_cli("query", trace, "--file", tmp_path / "q.sql", "--json")
    assert json.loads(result.stdout) == [{"y": 6}]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT *\nFROM nowhere", "line 1, column 1: no such table: nowhere"),
        ("SELECT 1; SELECT foo FROM slice", "line 1, column 18: no such column: foo"),
        ("SELECT (", "line 1, column "),
        ("", "the SQL is wrong"),
    ],
    ids=["table", "column", "syntax", "empty"],
)
def test_wrong_sql_is_wrong_usage_and_says_where(memexport_cli, trace, sql, said):
    result = memexport_cli("query", trace, sql)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_either_the_sql_or_a_file(memexport_cli, trace, tmp_path):
    assert memexport_cli("query", trace).exit_code == 2
    assert memexport_cli("query", trace, "SELECT 1", "--file", "x").exit_code == 2
    assert memexport_cli("query", trace, "--file", tmp_path / "missing.sql").exit_code == 3


@pytest.mark.parametrize(
    "name", ["missing.pftrace", "missing.json", "missing.memx", "noise.pftrace", "noise"]
)
def test_a_trace_that_cannot_be_read_exits_with_3(memexport_cli, tmp_path, name):
    if name.startswith("noise"):
        (tmp_path / name).write_bytes(b"\xff\xfe noise" * 100)
    result = memexport_cli("query", tmp_path / name, "SELECT 1")
    assert (result.exit_code, result.stdout) == (3, ""), result.stderr
    assert name in result.stderr


def test_what_is_missing_is_said_with_how_to_get_it(memexport_cli, trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    result = memexport_cli("query", trace, "SELECT 1")
    assert result.exit_code == 2
    assert "memexport[viewer]" in result.stderr
