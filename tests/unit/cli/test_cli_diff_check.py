"""`memexport diff` and `check`, and the pages of `summary`: what they print, write and exit with."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from made_runs import Run
from rank_recordings import recorded

MIB = 1 << 20
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def steady(size=10 * MIB, steps=6, **info):
    run = Run(**info)
    for _ in range(steps):
        run.allocate(size, module="layers.0")
        run.release(run.last_address).end_step()
    return run


@pytest.fixture
def pair(tmp_path):
    """Two runs, the second of which takes more."""
    small, large = steady(), steady(12 * MIB)
    return small.save(tmp_path / "main.memx"), large.save(tmp_path / "branch.memx")


def test_diff_prints_the_gap_and_exits_with_0(memexport_cli, pair):
    result = memexport_cli("diff", *pair)
    assert result.exit_code == 0
    assert "cpu peaks at 10.00 MiB in A, 12.00 MiB in B: +2.00 MiB (+20.0%)" in result.stdout
    assert "6 steps in both; their peaks part at step 0" in result.stdout
    assert result.stderr == ""


def test_diff_as_json_is_one_object(memexport_cli, pair):
    fields = json.loads(memexport_cli("diff", *pair, "--json").stdout)
    assert list(fields) == ["a", "b", "devices", "only_in_a", "only_in_b"]
    device = fields["devices"]["cpu"]
    assert list(device) == [
        "a_peak_bytes",
        "b_peak_bytes",
        "gap",
        "by_category",
        "by_module",
        "by_operator",
        "rows",
        "steps",
        "parts_at_step",
    ]
    assert device["gap"] == sum(row["change"] for row in device["rows"]) == 2 * MIB


def test_diff_as_markdown_is_tables(memexport_cli, pair):
    text = memexport_cli("diff", *pair, "--markdown").stdout
    assert "| `activation` | `layers.0` | `aten.mm.default` | +2.00 MiB |" in text


@pytest.mark.parametrize(
    ("option", "exit_code"),
    [
        ("--fail-on-increase", 1),
        ("--fail-on-increase=19%", 1),
        ("--fail-on-increase=20%", 0),
        ("--fail-on-increase=2MiB", 0),
    ],
)
def test_diff_fails_on_an_increase_beyond_the_tolerance(memexport_cli, pair, option, exit_code):
    result = memexport_cli("diff", *pair, option)
    assert result.exit_code == exit_code
    assert ("cpu peaks 2.00 MiB higher than in A" in result.stderr) == bool(exit_code)
    assert memexport_cli("diff", *reversed(pair), option).exit_code == 0


def test_diff_draws_both_on_one_time_line_as_two_processes_that_begin_at_0(memexport_cli, pair, load_trace):
    result = memexport_cli("diff", *pair, "-o", "diff.pftrace")
    assert result.exit_code == 0
    assert "Wrote diff.pftrace" in result.stderr
    processor = load_trace(pair[0].parent / "diff.pftrace")
    assert processor.import_problems() == []
    rows = processor.query("SELECT name FROM process WHERE name IS NOT NULL ORDER BY name")
    assert [row["name"] for row in rows] == ["A main.memx", "B branch.memx"]
    steps = processor.query(
        "SELECT p.name AS process, min(s.ts) AS first, count(*) AS steps FROM slice s JOIN thread_track t"
        " ON s.track_id = t.id JOIN thread USING (utid) JOIN process p USING (upid)"
        " WHERE s.name GLOB 'step*' GROUP BY p.name ORDER BY p.name"
    )
    assert [(row["process"], row["first"], row["steps"]) for row in steps] == [
        ("A main.memx", 0, 6),
        ("B branch.memx", 0, 6),
    ]
    peaks = processor.query(
        "SELECT t.name AS name, max(c.value) AS peak FROM counter c JOIN track t ON c.track_id = t.id"
        " WHERE t.name GLOB '*allocated' GROUP BY t.name ORDER BY t.name"
    )
    assert [(row["name"], row["peak"]) for row in peaks] == [
        ("A main.memx cpu allocated", 10 * MIB),
        ("B branch.memx cpu allocated", 12 * MIB),
    ]


def test_diff_does_not_replace_a_picture_unless_told_to(memexport_cli, pair):
    assert memexport_cli("diff", *pair, "-o", "diff.json").exit_code == 0
    assert memexport_cli("diff", *pair, "-o", "diff.json").exit_code == 4
    assert memexport_cli("diff", *pair, "-o", "diff.json", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "diff.memx"], "is no picture"),
        (["--json", "--markdown"], "exclude each other"),
        (["--fail-on-increase", "much"], "is no tolerance"),
    ],
)
def test_wrong_usage_of_diff_exits_with_2(memexport_cli, pair, arguments, said):
    result = memexport_cli("diff", *pair, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_recording_with_and_one_without_a_clock_cannot_be_drawn_together(memexport_cli, pair, recording):
    result = memexport_cli("diff", pair[0], recording, "-o", "diff.pftrace")
    assert result.exit_code == 2
    assert "has no clock" in result.stderr


def test_each_rank_of_a_run_is_drawn_as_a_process_under_the_runs_name(
    memexport_cli, pair, tmp_path, load_trace
):
    """Beside a run of one rank, and of the same number of ranks."""
    branch = tmp_path / "ranks.memx"
    several = Run().allocate(MIB, rank=0).allocate(2 * MIB, rank=1, module="head").end_step()
    several.allocate(MIB, rank=10).save(branch)
    assert memexport_cli("diff", pair[0], branch, "-o", "one.pftrace").exit_code == 0
    assert processes(load_trace(tmp_path / "one.pftrace")) == [
        "A main.memx",
        *("B ranks.memx", "B ranks.memx rank 00", "B ranks.memx rank 01", "B ranks.memx rank 10"),
    ]
    other = Run().allocate(MIB, rank=0).allocate(3 * MIB, rank=1).save(tmp_path / "more.memx")
    assert memexport_cli("diff", other, branch, "-o", "two.pftrace").exit_code == 0
    processor = load_trace(tmp_path / "two.pftrace")
    assert processor.import_problems() == []
    peaks = processor.query(
        "SELECT t.name AS name, max(c.value) AS peak FROM counter c JOIN track t ON c.track_id = t.id"
        " WHERE t.name GLOB '*allocated' GROUP BY t.name ORDER BY t.name"
    )
    assert [row["name"] for row in peaks] == [
        *(f"A more.memx rank {rank} cpu allocated" for rank in "01"),
        *(f"B ranks.memx rank {rank} cpu allocated" for rank in ("00", "01", "10")),
    ]


def processes(processor):
    """What they are called, in order."""
    rows = processor.query("SELECT name FROM process WHERE name IS NOT NULL ORDER BY name")
    return [row["name"] for row in rows]


def test_check_passes_with_a_line_for_each_limit(memexport_cli, pair):
    result = memexport_cli("check", pair[0], "--max-peak", "10MiB", "--max-growth", "0/step")
    assert result.exit_code == 0
    assert [line[:16] for line in result.stdout.splitlines()] == ["ok    max-peak: ", "ok    max-growth"]


def test_check_fails_with_each_reason(memexport_cli, pair):
    result = memexport_cli("check", pair[1], "--max-peak", "1MiB", "--baseline", pair[0], "--tolerance", "2%")
    assert result.exit_code == 1
    peak, baseline = result.stdout.splitlines()
    assert peak.startswith("FAIL  max-peak: cpu peaked at 12.00 MiB, 11.00 MiB over the limit of 1.00 MiB")
    assert baseline == (
        "FAIL  baseline: cpu peaked at 12.00 MiB, in the baseline at 10.00 MiB: 2.00 MiB more (+20.0%),"
        " and 2 % would be fine"
    )


def test_a_limit_that_cannot_be_judged_fails(memexport_cli, tmp_path):
    path = steady(steps=2).save(tmp_path / "short.memx")
    result = memexport_cli("check", path, "--max-growth", "1GiB/step")
    assert result.exit_code == 1
    assert "only 2 steps were recorded" in result.stdout


def test_check_judges_only_the_device_that_is_named(memexport_cli, pair):
    assert memexport_cli("check", pair[1], "--max-peak", "1GiB", "--device", "cpu").exit_code == 0
    result = memexport_cli("check", pair[1], "--max-peak", "1GiB", "--device", "cuda:0")
    assert result.exit_code == 1
    assert "cuda:0 is not in the recording" in result.stdout


def test_check_as_json_is_an_object_and_of_several_inputs_an_array(memexport_cli, pair):
    fields = json.loads(memexport_cli("check", pair[0], "--max-peak", "11MiB", "--json").stdout)
    assert list(fields) == ["passed", "limits"]
    assert list(fields["limits"][0]) == ["limit", "passed", "reasons", "facts"]
    result = memexport_cli("check", *pair, "--max-peak", "11MiB", "--json")
    assert result.exit_code == 1
    assert [(one["path"], one["passed"]) for one in json.loads(result.stdout)] == [
        (str(pair[0]), True),
        (str(pair[1]), False),
    ]


def test_check_writes_a_junit_report_of_all_inputs_even_of_one_that_cannot_be_read(memexport_cli, pair):
    broken = pair[0].parent / "broken.memx"
    broken.write_bytes(b"nonsense")
    limits = ["--max-peak", "11MiB", "--junit", "junit.xml"]
    result = memexport_cli("check", *pair, broken, *limits)
    assert result.exit_code == 3
    suites = ElementTree.parse(broken.parent / "junit.xml").getroot()
    assert [suites.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert memexport_cli("check", *pair, *limits).exit_code == 4, "it is there already"
    assert memexport_cli("check", *pair, *limits, "--force").exit_code == 1


@pytest.fixture
def ranks(tmp_path):
    """Four ranks of a run, of which the third takes most."""
    sizes = (3, 4, 9, 4)
    return [recorded(tmp_path / f"run-{rank}.memx", rank, size * MIB, 4) for rank, size in enumerate(sizes)]


def test_check_judges_each_rank_of_a_run_and_names_the_worst(memexport_cli, ranks):
    """Whether they are files or one merged recording; the report has a test case for each rank and limit."""
    limits = ["--merge", "--max-peak", "15MiB", "--junit", "junit.xml", "--force"]
    memexport_cli("convert", *ranks, "-o", "all.memx")
    for inputs, name in ((ranks, str(ranks[2])), (["all.memx"], "all.memx")):
        result = memexport_cli("check", *inputs, *limits, "--max-growth", "0")
        assert result.exit_code == 1
        assert result.stdout.startswith("FAIL  max-peak: rank 2, the worst of 4: cuda:0 peaked at 19.00 MiB")
        suites = ElementTree.parse(ranks[0].parent / "junit.xml").getroot()
        assert [suites.get(count) for count in ("tests", "failures", "errors")] == ["8", "5", "0"]
        cases = [(case.get("classname"), case.get("name")) for case in suites.iter("testcase")]
        assert cases[4:6] == [(f"{name} rank 2", "max-peak"), (f"{name} rank 2", "max-growth")]
        fields = json.loads(memexport_cli("check", *inputs, "--merge", "--max-peak", "1GiB", "--json").stdout)
        assert (fields["passed"], fields["limits"][0]["worst_rank"], len(fields["ranks"])) == (True, 2, 4)


def test_check_of_ranks_takes_a_merged_recording_as_baseline(memexport_cli, ranks):
    memexport_cli("convert", *ranks, "-o", "main.memx")
    baseline = ["--merge", "--baseline", "main.memx"]
    assert memexport_cli("check", *ranks, *baseline).exit_code == 0
    result = memexport_cli("check", *ranks[:3], *baseline)
    assert result.exit_code == 1
    assert "rank 3, the worst of 4: there is no recording of it" in result.stdout


def test_check_of_ranks_of_which_one_cannot_be_read_judges_the_rest(memexport_cli, ranks):
    ranks[1].write_bytes(b"nonsense")
    result = memexport_cli("check", *ranks, "--merge", "--max-peak", "1GiB", "--junit", "junit.xml")
    assert result.exit_code == 3
    assert "FAIL  max-peak: rank 1, the worst of 4: there is no recording of it" in result.stdout
    suites = ElementTree.parse(ranks[0].parent / "junit.xml").getroot()
    assert [suites.get(count) for count in ("tests", "failures", "errors")] == ["5", "1", "1"]
    nothing = memexport_cli("check", ranks[1], ranks[1], "--merge", "--max-peak", "1GiB", "--json")
    assert (nothing.exit_code, nothing.stdout) == (3, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no limit to check"),
        (["--max-peak", "1GiB", "--tolerance", "2%"], "--baseline"),
        (["--max-growth", "fast"], "is no growth"),
    ],
)
def test_wrong_usage_of_check_exits_with_2(memexport_cli, pair, arguments, said):
    result = memexport_cli("check", pair[0], *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_baseline_that_cannot_be_read_exits_with_3(memexport_cli, pair):
    assert memexport_cli("check", pair[0], "--baseline", "missing.memx").exit_code == 3


def test_summary_as_markdown_is_tables_and_of_several_inputs_has_titles(memexport_cli, pair):
    text = memexport_cli("summary", *pair, "--markdown").stdout
    assert text.startswith(f"### `{pair[0]}`\n\n**cpu peaked at 10.00 MiB")
    assert f"### `{pair[1]}`" in text
    result = memexport_cli("summary", pair[0], "--markdown", "--json")
    assert result.exit_code == 2


def on_a_terminal(columns, *arguments, **environment):
    """What `memexport` writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "memexport", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**variables, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment},
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    assert process.wait(60) == 0
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(("columns", "widest"), [(80, 80), (100, 100), (200, 120)])
def test_a_terminal_gets_colours_and_its_width_up_to_120(pair, columns, widest):
    text = on_a_terminal(columns, "summary", pair[0])
    assert ANSI.search(text)
    assert min(80, columns - 1) < max(len(ANSI.sub("", line)) for line in text.splitlines()) <= widest


@pytest.mark.parametrize(
    "environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=lambda value: next(iter(value))
)
def test_a_terminal_that_wants_no_colours_gets_none(pair, environment):
    assert "\x1b" not in on_a_terminal(90, "summary", pair[0], **environment)


def test_a_pipe_gets_plain_text_of_80_columns(memexport_cli, pair, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = memexport_cli("summary", pair[0]).stdout
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) == 80
