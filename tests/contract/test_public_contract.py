"""What scripts depend on, frozen: a change here is a breaking change and goes into the changelog."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from recordings import export

import memexport
from memexport import pipeline, registry
from memexport.cli import COMMANDS, main
from memexport.errors import InputError, MemexportError, OutputError, UsageError

NAMES = {
    "Category",
    "EventBatch",
    "EventKind",
    "InputError",
    "MemexportError",
    "OutputError",
    "Phase",
    "Recording",
    "RecordingInfo",
    "Tracker",
    "UsageError",
    "convert",
    "open",
}

OPTIONS = {
    "run": {"--output", "--force", "--shapes", "--stacks", "-m", "target"},
    "convert": {"--output", "--to", "--force", "--lifetimes", "--no-compress", "inputs"},
    "summary": {"--json", "recording"},
    "info": {"--json", "recording"},
    "formats": {"--json", "--markdown"},
    "demo": {"--force", "directory"},
}

JSONL_KEYS = [
    "kind",
    "time_unix_ns",
    "duration_ns",
    "name",
    "module",
    "phase",
    "category",
    "device",
    "step",
    "rank",
    "thread",
    "size_bytes",
    "allocated_bytes",
    "active_bytes",
    "reserved_bytes",
    "address",
]

COUNTER = {"start": int, "peak": int, "end": int}
SUMMARY = {
    "format": str,
    "schema_version": str,
    "events": int,
    "operators": int,
    "allocations": int,
    "releases": int,
    "steps": int,
    "clock": str,
    "duration_ns": int,
    "devices": dict,
    "top_operators": list,
    "markers": list,
    "alloc_retries": int,
    "ooms": int,
    "warnings": list,
}
DEVICE = {
    "allocated": COUNTER,
    "active": COUNTER,
    "reserved": None,
    "peak_time_unix_ns": int,
    "peak_operator": str,
    "peak_module": str,
    "peak_phase": str,
    "categories_at_peak": {"activation": int},
    "modules_at_peak": [{"module": str, "bytes": int}],
}
OPERATOR = {"operator": str, "module": str, "phase": str, "bytes": int, "count": int}
MARKER = {"name": str, "time_unix_ns": int, "event_index": int}


def shape(value, depth=9):
    """The keys and types of a JSON value; of a list, those of its first element."""
    if isinstance(value, dict) and depth:
        return {key: shape(part, depth - 1) for key, part in value.items()}
    if isinstance(value, list) and depth:
        return [shape(part, depth - 1) for part in value[:1]]
    return None if value is None else type(value)


@pytest.fixture
def archive(tmp_path, recorded):
    """An archive with every kind of event."""
    path = tmp_path / "run.memx"
    export(recorded, pipeline.exporter_to(path))
    return path


@pytest.fixture
def summary(archive):
    """What `memexport summary --json` prints for it."""
    result = CliRunner().invoke(main, ["summary", str(archive), "--json"])
    return json.loads(result.stdout)


def test_the_public_names_are_these():
    assert set(memexport.__all__) == NAMES
    assert set(dir(memexport)) == NAMES | {"__version__"}


def test_every_public_name_can_be_had_and_has_a_docstring():
    for name in memexport.__all__:
        assert inspect.getdoc(getattr(memexport, name))
    with pytest.raises(AttributeError):
        memexport.nonsense  # noqa: B018 - the access is what is tested


def test_importing_memexport_imports_neither_torch_nor_numpy():
    code = "import sys, memexport; print({'torch', 'numpy', 'google'} & sys.modules.keys())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "set()"


def test_reading_and_converting_import_no_torch(archive, tmp_path):
    code = (
        "import sys, memexport\n"
        f"print(memexport.open({str(archive)!r}).summary().events)\n"
        f"memexport.convert({str(archive)!r}, {str(tmp_path / 'new.pftrace')!r})\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["12", "False"]


def test_the_commands_and_their_options_are_these():
    context = click.Context(main)
    assert {
        name: {_spelled(p) for p in main.get_command(context, name).params} for name in COMMANDS
    } == OPTIONS


def _spelled(parameter):
    """The option's long form, or the argument's name."""
    if isinstance(parameter, click.Argument):
        return parameter.name
    return max(parameter.opts, key=len) if parameter.name != "style" else parameter.opts[0]


def test_the_short_options_are_these():
    context = click.Context(main)
    for name in ("run", "convert"):
        shorts = {opt for p in main.get_command(context, name).params for opt in p.opts if len(opt) == 2}
        assert shorts == ({"-o", "-m"} if name == "run" else {"-o"})


def test_the_exit_codes_are_these():
    assert [error.exit_code for error in (MemexportError, UsageError, InputError, OutputError)] == [
        1,
        2,
        3,
        4,
    ]


def test_the_summarys_json_has_these_keys_and_types_in_this_order(summary):
    assert shape(summary, 1) == SUMMARY
    assert list(summary) == list(SUMMARY)


def test_a_device_in_the_summary_has_these_keys_and_types(summary):
    assert list(summary["devices"]) == ["cpu", "cuda:0"]
    for device in summary["devices"].values():
        assert shape(device) == DEVICE
        assert list(device) == list(DEVICE)


def test_an_operator_and_a_marker_in_the_summary_have_these_keys_and_types(summary):
    assert shape(summary["top_operators"]) == [OPERATOR]
    assert shape(summary["markers"]) == [MARKER]


def test_the_summarys_values_are_those_of_the_recording(summary):
    assert (summary["events"], summary["operators"], summary["steps"]) == (12, 2, 2)
    assert summary["devices"]["cpu"]["allocated"] == {"start": 0, "peak": 512, "end": 0}
    assert summary["devices"]["cpu"]["categories_at_peak"] == {"activation": 512}
    assert (summary["alloc_retries"], summary["ooms"], summary["warnings"][0]) == (1, 0, "careful")


def test_the_python_summary_is_the_same_object(archive, summary):
    with memexport.open(archive) as recording:
        assert recording.summary().to_dict() == summary


def test_a_line_of_jsonl_has_these_keys(archive, tmp_path):
    memexport.convert(archive, tmp_path / "run.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [JSONL_KEYS] * 12
    assert {line["kind"] for line in lines} == {
        "operator",
        "allocation",
        "release",
        "sample",
        "span",
        "marker",
    }


def test_the_formats_and_suffixes_are_these():
    assert {format_.name: format_.suffixes for format_ in registry.EXPORTERS} == {
        "archive": (".memx",),
        "perfetto": (".pftrace", ".perfetto-trace"),
        "chrome": (".json", ".json.gz"),
        "jsonl": (".jsonl", ".jsonl.gz"),
    }
    assert [format_.name for format_ in registry.SOURCES] == ["memexport.archive", "torch.memory_tracker"]


def test_the_tracker_takes_these_arguments():
    parameters = inspect.signature(memexport.Tracker).parameters
    assert {"modules", "optimizer", "exporters", "flush_interval"} <= parameters.keys()
    assert {"start", "stop", "step", "mark", "summary", "usage"} <= set(dir(memexport.Tracker))
