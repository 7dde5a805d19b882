"""What scripts depend on, frozen: a change here is a breaking change and goes into the changelog."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from made_runs import Run
from rank_recordings import recorded as rank_recorded
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
    "OTelExporter",
    "OutputError",
    "Phase",
    "Recording",
    "RecordingInfo",
    "Selection",
    "Tracker",
    "UsageError",
    "convert",
    "diff",
    "open",
}

SELECTION = {"--from", "--until", "--device", "--min-bytes"}
OPTIONS = {
    "run": {
        "--output",
        "--force",
        "--shapes",
        "--stacks",
        "--capture",
        "--every",
        "--window",
        "--steps",
        "--max-size",
        "--oom",
        "--otlp",
        "--otlp-traces",
        "--fake",
        "--device",
        "--world-size",
        "--budget",
        "--fake-value",
        "-m",
        "target",
    },
    "convert": {
        "--output",
        "--to",
        "--force",
        "--lifetimes",
        "--step-peaks",
        "--endpoint",
        "--interval",
        "--no-compress",
        "--by-rank",
        "--engine",
        "--scheduler",
        *SELECTION,
        "inputs",
    },
    "push": {
        "--endpoint",
        "--protocol",
        "--interval",
        "--module-depth",
        "--top-modules",
        "--from",
        "inputs",
    },
    "summary": {"--json", "--markdown", "--merge", "--modules", *SELECTION, "inputs"},
    "diff": {"--json", "--markdown", "--fail-on-increase", "--output", "--force", "a", "b"},
    "check": {
        "--max-peak",
        "--max-growth",
        "--baseline",
        "--tolerance",
        "--device",
        "--merge",
        "--junit",
        "--force",
        "--json",
        "inputs",
    },
    "info": {"--json", "inputs"},
    "view": {"--no-browser", "--offline", "name"},
    "query": {"--file", "--json", "--csv", "name", "sql"},
    "plot": {"--output", "--to", "--force", "--theme", "--width", "--height", *SELECTION, "inputs"},
    "doctor": {"--json", "inputs"},
    "completion": {"shell"},
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
    "growth": dict,
    "advice": list,
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
    "operators_at_peak": [{"operator": str, "bytes": int}],
    "fragmentation_at_peak": None,
    "stacks_at_peak": [],
    "failed_requests": [],
}
GROWTH = {
    "steps_compared": int,
    "bytes_per_step": int,
    "rises": int,
    "first_bytes": int,
    "last_bytes": int,
    "suspicious": bool,
    "modules": [
        {"module": str, "bytes_per_step": int, "rises": int, "first_bytes": int, "last_bytes": int},
    ],
}
ADVICE = {
    "topic": str,
    "device": str,
    "bytes": int,
    "text": str,
    "modules": [{"module": str, "bytes": int}],
}
DIFFERENCE = {"name": str, "bytes": int, "than_bytes": int}
RANKS = {
    "ranks": int,
    "median": int,
    "spread": int,
    "deviation": int,
    "odd_rank": int,
    "peaks": [
        {
            "rank": int,
            "device": str,
            "peak": int,
            "peak_phase": str,
            "categories": {"parameter": int, "activation": int},
            "phases": {"forward": int, "backward": int},
        }
    ],
    "difference": {
        "rank": int,
        "than_rank": int,
        "bytes": int,
        "categories": [DIFFERENCE],
        "phases": [DIFFERENCE],
    },
}
STACK = {"stack": [str], "bytes": int, "count": int}
FAILED_REQUEST = {
    "bytes": int,
    "device_free_bytes": int,
    "time_unix_ns": int,
    "stack": [str],
    "operator": None,
    "module": None,
    "phase": None,
    "allocated_bytes": int,
    "reserved_bytes": int,
    "fragmentation_bytes": None,
    "categories": {"unattributed": int},
    "modules": [{"module": None, "bytes": int}],
    "operators": [{"operator": None, "bytes": int}],
    "stacks": [STACK],
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
    code = "import sys, memexport; print({'torch', 'numpy', 'google', 'opentelemetry'} & sys.modules.keys())"
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


def test_a_stack_and_a_failed_request_in_the_summary_have_these_keys_and_types(tmp_path):
    frames = [{"filename": "model.py", "line": 7, "name": "forward"}]
    entries = [
        {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 7, "frames": frames},
        {"action": "oom", "size": 512, "stream": 0, "time_us": 8, "device_free": 100, "frames": frames},
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [entries]}, 4))
    device = memexport.open(path).summary().to_dict()["devices"]["cuda:0"]
    assert shape(device["stacks_at_peak"]) == [STACK]
    assert shape(device["failed_requests"]) == [FAILED_REQUEST]


def test_an_operator_and_a_marker_in_the_summary_have_these_keys_and_types(summary):
    assert shape(summary["top_operators"]) == [OPERATOR]
    assert shape(summary["markers"]) == [MARKER]


def test_growth_and_advice_in_the_summary_have_these_keys_and_types(tmp_path):
    run = Run()
    for _ in range(6):
        run.allocate(1 << 20, module="layers.0").end_step()
    fields = memexport.open(run.save(tmp_path / "leak.memx")).summary().to_dict()
    assert shape(fields["growth"]) == {"cpu": GROWTH}
    assert shape(fields["advice"]) == [ADVICE]
    few = memexport.open(Run().allocate(8).end_step().save(tmp_path / "few.memx")).summary().to_dict()
    assert few["growth"] == {"cpu": None}


def test_of_several_ranks_the_summary_has_how_they_compare_as_its_last_key(tmp_path, summary):
    paths = [rank_recorded(tmp_path / f"{rank}.memx", rank, 1 << 20 + rank // 2, 3) for rank in range(3)]
    result = CliRunner().invoke(main, ["summary", "--merge", "--json", *map(str, paths)])
    several = json.loads(result.stdout)
    assert list(several) == [*summary, "ranks"]
    assert shape(several["ranks"]) == {"cuda": RANKS}


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
        "parquet": (".parquet",),
        "csv": (".csv", ".csv.gz"),
        "pprof": (".pb.gz",),
        "html": (".html",),
        "png": (".png",),
        "svg": (".svg",),
        "torch-snapshot": (".snapshot.pickle",),
        "otlp-file": (".otlp.jsonl",),
        "otlp": (),
        "tensorboard": (),
    }
    assert [format_.name for format_ in registry.SOURCES] == [
        "memexport.archive",
        "torch.memory_tracker",
        "torch.cuda.snapshot",
        "kineto",
    ]


def test_the_help_imports_neither_torch_nor_opentelemetry():
    code = (
        "import sys, memexport.cli\n"
        "try:\n    memexport.cli.main(['push', '--help'])\n"
        "except SystemExit:\n    print({'torch', 'opentelemetry'} & sys.modules.keys())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.splitlines()[-1] == "set()"


def test_the_opentelemetry_exporter_takes_these_arguments():
    parameters = inspect.signature(memexport.OTelExporter).parameters
    assert list(parameters) == [
        "meter_provider",
        "module_depth",
        "top_modules",
        "shutdown_timeout",
        "traces",
        "tracer_provider",
    ]


def test_the_drop_in_trackers_have_the_names_and_members_of_torchs():
    from memexport import compat

    members = {
        "FSDPMemTracker": {"track_inputs", "track_external", "get_tracker_snapshot", "memory_tracking"},
        "MemTracker": {
            "display_modulewise_snapshots",
            "display_snapshot",
            "get_tracker_snapshot",
            "memory_tracking",
            "reset_mod_stats",
            "track_external",
        },
        "MemoryTracker": {
            "load",
            "memories_active",
            "memories_allocated",
            "memories_reserved",
            "save_stats",
            "show_traces",
            "start_monitor",
            "stop",
            "summary",
        },
        "ModTracker": {"clear_user_hooks", "get_known_fqn", "is_bw", "register_user_hooks"},
    }
    assert set(compat.__all__) == {*members, "FSDPModState", "FSDPRefType", "MemRefType", "ModState"}
    for name, expected in members.items():
        assert expected <= set(dir(getattr(compat, name)))
    assert list(compat.MemRefType) == [
        "Parameter",
        "Buffer",
        "Gradient",
        "Activation",
        "Temp",
        "Optstate",
        "Other",
    ]


def test_the_tracker_takes_these_arguments():
    parameters = inspect.signature(memexport.Tracker).parameters
    assert {"modules", "optimizer", "exporters", "flush_interval"} <= parameters.keys()
    assert {"fake", "device", "world_size", "budget", "fake_value"} <= parameters.keys()
    assert parameters["capture"].default == "operators"
    assert parameters["capture"].annotation == "Literal['operators', 'allocator']"
    assert {"start", "stop", "step", "mark", "summary", "usage", "exceeded"} <= set(dir(memexport.Tracker))
