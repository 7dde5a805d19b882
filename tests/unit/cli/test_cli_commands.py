"""Each command: what it prints where, what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

import pytest

from memexport import registry

ESCAPE = "\x1b[2J"
ARCHIVE = Path(__file__).parents[2] / "data" / "archives" / "1.0.memx"


def test_summary_prints_the_report_on_stdout_and_nothing_else(memexport_cli, recording):
    result = memexport_cli("summary", recording)
    assert result.exit_code == 0
    assert result.stdout.startswith("torch.memory_tracker: 28 events, 26 operators")
    assert result.stderr == ""


def test_summary_as_json_is_one_object(memexport_cli, recording):
    summary = json.loads(memexport_cli("summary", recording, "--json").stdout)
    assert (summary["operators"], summary["alloc_retries"], summary["ooms"]) == (26, 3, None)
    assert summary["devices"]["accelerator"]["categories_at_peak"] == {"unattributed": 923224}


def test_a_pickle_that_calls_something_is_refused_and_nothing_is_called(memexport_cli, tmp_path):
    class Calls:
        def __reduce__(self):
            return open, (str(tmp_path / "made"), "w")

    evil = tmp_path / "evil.pickle"
    evil.write_bytes(pickle.dumps({"memories_allocated": Calls()}))
    for command in (["summary", evil], ["info", evil], ["convert", evil, "-o", "x.jsonl"]):
        result = memexport_cli(*command)
        assert result.exit_code == 3
        assert "open" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"evil.pickle"}


def test_a_cut_pickle_is_refused(memexport_cli, recording):
    recording.write_bytes(recording.read_bytes()[:-100])
    result = memexport_cli("summary", recording)
    assert result.exit_code == 3
    assert "cut" in result.stderr


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x05}."])
def test_what_is_no_recording_is_refused(memexport_cli, recording, content):
    recording.write_bytes(content)
    assert memexport_cli("summary", recording).exit_code == 3


def test_names_in_a_recording_cannot_steer_the_terminal(memexport_cli, tmp_path):
    name = f"0.forward.{ESCAPE}x.default_0"
    counters = {f"memories_{which}": {0: (name, 1.0)} for which in ("allocated", "active", "reserved")}
    path = tmp_path / "old.pickle"
    path.write_bytes(pickle.dumps({**counters, "markers": {ESCAPE: 0}, "num_alloc_retries": 0, ESCAPE: 1}))
    for command in (["summary", path], ["summary", path, "--json"], ["info", path], ["convert", path]):
        result = memexport_cli(*command)
        assert result.exit_code == 0
        assert "\x1b" not in result.output


def test_info_says_where_a_recording_comes_from_without_summing_it_up(memexport_cli, recording, monkeypatch):
    monkeypatch.setattr("memexport.sources.memory_tracker.MemoryTrackerSource.batches", None)
    result = memexport_cli("info", recording)
    assert result.exit_code == 0
    assert "torch.memory_tracker 1.1" in result.stdout
    fields = json.loads(memexport_cli("info", recording, "--json").stdout)
    assert fields["clock"] == "index"
    assert fields["devices"][0]["type"] == "accelerator"
    assert fields["file_bytes"] == recording.stat().st_size


def test_convert_writes_the_file_and_says_what_to_do_with_it(memexport_cli, recording, tmp_path):
    result = memexport_cli("convert", recording, "-o", "new.jsonl")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("Wrote new.jsonl (8.")
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 28


def test_convert_says_what_the_source_warns_of(memexport_cli, recording):
    assert (
        "warning: the module of 17 operators" in memexport_cli("convert", recording, "-o", "x.jsonl").stderr
    )


# The recording has no clock, which metrics need.
@pytest.mark.parametrize(
    "format_",
    [f for f in registry.EXPORTERS if f.suffixes and not f.name.startswith("otlp")],
    ids=lambda f: f.name,
)
def test_convert_writes_every_format_beside_the_input_when_no_output_is_named(
    memexport_cli, recording, format_
):
    result = memexport_cli("convert", recording, "--to", format_.name)
    assert result.exit_code == 0, result.output
    assert recording.with_name(f"old{format_.suffixes[0]}").stat().st_size > 0


def test_convert_makes_a_perfetto_trace_unless_told_otherwise(memexport_cli, recording):
    assert memexport_cli("convert", recording).exit_code == 0
    assert recording.with_name("old.pftrace").exists()


def test_convert_replaces_a_file_only_when_forced(memexport_cli, recording, tmp_path):
    (tmp_path / "new.jsonl").write_text("precious")
    refused = memexport_cli("convert", recording, "-o", "new.jsonl")
    assert refused.exit_code == 4
    assert "--force" in refused.stderr
    assert (tmp_path / "new.jsonl").read_text() == "precious"
    assert memexport_cli("convert", recording, "-o", "new.jsonl", "--force").exit_code == 0
    assert (tmp_path / "new.jsonl").read_text() != "precious"


def test_convert_leaves_the_old_file_when_the_input_cannot_be_read(memexport_cli, recording, tmp_path):
    (tmp_path / "new.jsonl").write_text("precious")
    recording.write_bytes(b"nonsense")
    assert memexport_cli("convert", recording, "-o", "new.jsonl", "--force").exit_code == 3
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["new.jsonl", "old.pickle"]
    assert (tmp_path / "new.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "x.nonsense"],
        ["--to", "nonsense"],
        ["second.memx", "-o", "x.jsonl"],
        ["-o", "old.pickle", "--to", "jsonl", "--force"],
    ],
)
def test_convert_refuses_what_makes_no_sense(memexport_cli, recording, arguments):
    before = recording.read_bytes()
    assert memexport_cli("convert", recording, *arguments).exit_code == 2
    assert recording.read_bytes() == before


def test_convert_into_a_folder_that_does_not_exist_exits_with_4(memexport_cli, recording):
    assert memexport_cli("convert", recording, "-o", "missing/x.jsonl").exit_code == 4


def test_formats_lists_every_format_of_the_registry(memexport_cli):
    text = memexport_cli("formats").stdout
    table = memexport_cli("formats", "--markdown").stdout
    listed = json.loads(memexport_cli("formats", "--json").stdout)
    assert [f["name"] for f in listed["read"]] == [f.name for f in registry.sources()]
    assert [f["name"] for f in listed["write"]] == [f.name for f in registry.exporters()]
    for format_ in (*registry.sources(), *registry.exporters()):
        assert format_.summary in text
        assert all(f"`{suffix}`" in table for suffix in format_.suffixes)
    assert {line.count("|") for line in table.splitlines()} == {7}


@pytest.fixture
def launched(monkeypatch):
    """The calls of the launcher, which is replaced by one that writes its outputs and exits with 7."""

    class Calls(list):
        before = staticmethod(lambda: None)

    calls = Calls()

    def run(target, **options):
        assert callable(options.pop("report"))
        calls.append((target, options))
        calls.before()
        for output in options["outputs"]:
            Path(output).write_bytes(b"recorded")
        return 7

    monkeypatch.setattr("memexport.launcher.run", run)
    return calls


def test_run_leaves_everything_after_the_script_to_the_script(memexport_cli, launched):
    result = memexport_cli(
        "run", "-o", "a.memx", "-o", "b.pftrace", "train.py", "--force", "-o", "x", "--", "-m"
    )
    assert launched == [
        (
            ["train.py", "--force", "-o", "x", "--", "-m"],
            {
                "as_module": False,
                "outputs": ["a.memx", "b.pftrace"],
                "overwrite": False,
                "otlp": False,
                "otlp_traces": False,
                "options": {"record_shapes": False, "record_stacks": False, "capture": "operators"},
            },
        )
    ]
    assert result.exit_code == 7
    assert [line.split()[1].rpartition("/")[2] for line in result.stderr.splitlines()] == [
        "a.memx",
        "b.pftrace",
    ]


def test_run_takes_a_module_as_python_does(memexport_cli, launched):
    flags = ("--force", "--shapes", "--stacks", "--capture", "allocator", "--otlp-traces")
    memexport_cli("run", *flags, "-o", "a.memx", "-m", "pkg.train", "-m", "x")
    ((target, given),) = launched
    assert target == ["pkg.train", "-m", "x"]
    assert given == {
        "as_module": True,
        "outputs": ["a.memx"],
        "overwrite": True,
        "otlp": True,
        "otlp_traces": True,
        "options": {"record_shapes": True, "record_stacks": True, "capture": "allocator"},
    }


def test_run_passes_on_what_is_to_be_simulated(memexport_cli, launched):
    memexport_cli("run", "--fake", "--device", "cuda", "--budget", "1GiB", "train.py")
    options = launched[0][1]["options"]
    assert options == {
        "record_shapes": False,
        "record_stacks": False,
        "capture": "operators",
        "fake": True,
        "device": "cuda",
        "world_size": None,
        "budget": 2**30,
        "fake_value": 1.0,
    }
    assert memexport_cli("run", "--budget", "1GiB", "train.py").exit_code == 2
    assert memexport_cli("run", "--fake", "--capture", "allocator", "train.py").exit_code == 2


def test_run_names_its_output_after_the_script_and_the_process(memexport_cli, launched, tmp_path):
    memexport_cli("run", "sub/train.py")
    (name,) = launched[0][1]["outputs"]
    assert name.startswith("memexport-train.")
    assert name.endswith(".memx")
    assert (tmp_path / name).exists()


def test_run_says_where_the_files_are_when_the_script_changes_the_folder(memexport_cli, launched, tmp_path):
    (tmp_path / "sub").mkdir()
    launched.before = lambda: os.chdir("sub")
    result = memexport_cli("run", "-o", tmp_path / "a.memx", "train.py")
    assert f"Wrote {tmp_path / 'a.memx'}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["-o", "a.nonsense", "train.py"], 2),
        (["-o", "a.memx", "missing.py"], 2),
        (["-o", "old.pickle.memx", "train.py"], 4),
        (["-o", "missing/a.memx", "train.py"], 4),
    ],
)
def test_run_refuses_what_cannot_be_done_before_the_script_begins(
    memexport_cli, tmp_path, arguments, exit_code
):
    (tmp_path / "train.py").write_text("open('began', 'w')")
    (tmp_path / "old.pickle.memx").write_bytes(b"precious")
    assert memexport_cli("run", *arguments).exit_code == exit_code
    assert not (tmp_path / "began").exists()


def test_the_demo_without_torch_says_how_to_get_it(memexport_cli, monkeypatch):
    for name in [
        name for name in sys.modules if name == "memexport.demo" or name.startswith("memexport.tracker")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("memexport.demo", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = memexport_cli("demo")
    assert result.exit_code == 2
    assert "memexport[torch]" in result.stderr


def test_summary_says_what_each_module_did_if_asked(memexport_cli, recording):
    """The table stands below the rest; the JSON has a key more. A legacy pickle has no calls of modules."""
    for path, has_modules in ((ARCHIVE, True), (recording, False)):
        plain = json.loads(memexport_cli("summary", "--json", path).stdout)
        fields = json.loads(memexport_cli("summary", "--json", "--modules", path).stdout)
        modules = fields.pop("modules")
        assert fields == plain
        assert bool(modules) == has_modules
        text = memexport_cli("summary", "--modules", path).stdout
        assert all(row["module"] in text for row in modules)
        assert ("No module was seen" in text) != has_modules
