"""`memexport doctor`: what works, what does not, and what to do about it."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from memexport.archive.framing import pack_record
from memexport.archive.v1 import archive_pb2 as pb
from memexport.doctor import environment, packages, tracking
from memexport.doctor.check import Check

ROOT = Path(__file__).parents[3]
ARCHIVE = ROOT / "tests" / "data" / "archives" / "1.0.memx"


@pytest.fixture
def surroundings(monkeypatch):
    """Without variables that would change what is found."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def without_torch(monkeypatch):
    """The part that imports torch has a test of its own."""
    monkeypatch.setattr("memexport.doctor.tracking_checks", lambda: iter(()))


def test_this_installation_is_healthy(memexport_cli, surroundings):
    result = memexport_cli("doctor")
    assert result.exit_code == 0, result.stdout
    assert "ok       python: 3." in result.stdout
    assert "ok       tracking operators: " in result.stdout
    assert "FAILURE" not in result.stdout


def test_json_has_a_level_and_a_next_step_for_each_check(memexport_cli, surroundings, without_torch):
    report = json.loads(memexport_cli("doctor", "--json").stdout)
    assert report["ok"] is True
    assert {tuple(check) for check in report["checks"]} == {("name", "level", "says", "next_step")}
    assert {check["level"] for check in report["checks"]} <= {"ok", "warning", "failure"}


def test_a_collector_that_answers_is_fine_and_one_that_does_not_is_a_warning(
    memexport_cli, surroundings, without_torch
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        surroundings.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://me:secret@127.0.0.1:{port}")
        result = memexport_cli("doctor")
        assert result.exit_code == 0
        assert f"http://127.0.0.1:{port} answers" in result.stdout
    result = memexport_cli("doctor")
    assert result.exit_code == 0
    assert f"WARNING  opentelemetry: nobody answers at http://127.0.0.1:{port}" in result.stdout
    assert "→ start the collector" in result.stdout
    assert "secret" not in result.stdout


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://x", "http://x:port", "nonsense"])
def test_an_endpoint_that_is_no_address_is_a_failure(memexport_cli, surroundings, without_torch, endpoint):
    surroundings.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
    result = memexport_cli("doctor")
    assert result.exit_code == 1
    assert "is no http address" in result.stdout


def test_a_folder_that_cannot_be_written_to_is_a_failure(tmp_path):
    (check, *_) = environment.environment_checks(tmp_path / "missing")
    assert (check.name, check.level) == ("folder", "failure")
    assert check.next_step


def test_a_variable_that_means_nothing_is_a_warning(memexport_cli, surroundings, without_torch):
    surroundings.setenv("MEMEXPORT_OUTPUT", "x")
    result = memexport_cli("doctor")
    assert result.exit_code == 0
    assert "WARNING  variables: MEMEXPORT_OUTPUT means nothing" in result.stdout


def test_it_knows_the_variables_that_the_code_reads():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "memexport").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'"(MEMEXPORT_[A-Z_]+)"', text)}
    assert named == environment.KNOWN_VARIABLES


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("click>=8.1", packages.Requirement("click", "8.1", None)),
        ("torch>=2.10; extra == 'torch'", packages.Requirement("torch", "2.10", "torch")),
        (
            'mkdocstrings[python]>=0.27 ; extra == "docs"',
            packages.Requirement("mkdocstrings", "0.27", "docs"),
        ),
        ("types-requests; extra == 'dev'", None),
    ],
    ids=["plain", "extra", "brackets", "no version"],
)
def test_it_reads_the_requirements_of_the_metadata(line, expected):
    assert packages.parsed(line) == expected


@pytest.mark.parametrize(
    ("version", "least", "older"),
    [
        ("2.9.1", "2.10", True),
        ("2.10", "2.10", False),
        ("2.10.0", "2.10", False),
        ("2.13.0+cpu", "2.10", False),
        ("3.0rc1", "2.10", False),
        ("1", "1.0.1", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version, least, older):
    assert packages.is_older(version, least) is older


def levels(monkeypatch, installed):
    """By name, with these packages in place of those that are installed."""

    def version(name):
        if name not in installed:
            raise packages.metadata.PackageNotFoundError
        return installed[name]

    lines = ["numpy>=1.26", "torch>=2.10; extra == 'torch'", "matplotlib>=3.8; extra == 'plot'"]
    monkeypatch.setattr(packages.metadata, "requires", lambda _name: lines)
    monkeypatch.setattr(packages.metadata, "version", version)
    return {check.name: check for check in packages.package_checks()}


def test_what_is_missing_or_too_old_is_said_with_the_command_that_mends_it(monkeypatch):
    found = levels(monkeypatch, {"numpy": "1.20", "matplotlib": "3.1"})
    assert found["packages"].level == "failure"
    assert "numpy is 1.20, and must be at least 1.26" in found["packages"].says
    assert found["torch"] == Check(
        "torch",
        "warning",
        "not installed: recordings can be read and converted, but nothing can be recorded",
        "pip install 'memexport[torch]'",
    )
    assert (found["plot"].level, found["plot"].next_step) == ("warning", "pip install 'memexport[plot]'")


def test_an_extra_that_nobody_asked_for_is_no_warning(monkeypatch):
    found = levels(monkeypatch, {"numpy": "2.0", "torch": "2.13.0"})
    assert {check.level for check in found.values()} == {"ok"}
    assert found["extras"].says == "not installed: plot"


def test_a_torch_that_lacks_what_the_tracker_needs_is_a_failure(monkeypatch):
    def moved(*_arguments, **_options):
        raise AttributeError("module 'torch._C' has no attribute '_current_autograd_node'")

    monkeypatch.setattr("memexport.tracker.Tracker", moved)
    found = list(tracking.tracking_checks())
    assert [check.level for check in found[:2]] == ["failure", "failure"]
    assert "_current_autograd_node" in found[0].says


def test_a_whole_recording_is_fine(memexport_cli, recording, tmp_path):
    memexport_cli("convert", recording, "-o", "whole.memx")
    result = memexport_cli("doctor", "whole.memx")
    assert result.exit_code == 0
    assert "28 events" in result.stdout
    assert "right checksums" in result.stdout


def test_a_recording_that_was_cut_is_a_warning(memexport_cli, recording, tmp_path):
    memexport_cli("convert", recording, "-o", "whole.memx")
    content = (tmp_path / "whole.memx").read_bytes()
    (tmp_path / "cut.memx").write_bytes(content[:-10])
    report = json.loads(memexport_cli("doctor", "cut.memx", "--json").stdout)
    said = {check["says"]: check["level"] for check in report["checks"]}
    assert said["the recording has no end: it was cut short, or is still being written"] == "warning"


def test_a_recording_with_a_wrong_checksum_is_a_failure(memexport_cli, tmp_path):
    content = bytearray(ARCHIVE.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4] = b"\xff\x00\xff\x00"
    (tmp_path / "bad.memx").write_bytes(content)
    result = memexport_cli("doctor", "bad.memx")
    assert result.exit_code == 1
    assert "bytes are lost" in result.stdout
    assert "copy it again" in result.stdout


def test_files_that_cannot_be_read_are_failures_and_the_others_are_checked_all_the_same(
    memexport_cli, recording, tmp_path
):
    (tmp_path / "notes.txt").write_text("hello")
    result = memexport_cli("doctor", "missing.memx", "notes.txt", recording)
    assert result.exit_code == 1
    assert "FAILURE  missing.memx: No such file" in result.stdout
    assert "FAILURE  notes.txt: not a recording" in result.stdout
    assert f"ok       {recording}: torch.memory_tracker" in result.stdout


@pytest.mark.parametrize(
    ("major", "level", "step"),
    [(1, "warning", "pip install --upgrade memexport"), (99, "failure", "upgrade memexport")],
    ids=["minor", "major"],
)
def test_a_file_of_a_newer_schema_says_to_upgrade(memexport_cli, tmp_path, major, level, step):
    header = pb.Record(header=pb.Header(schema_major=major, schema_minor=99))
    (tmp_path / "new.memx").write_bytes(pack_record(header.SerializeToString()))
    report = json.loads(memexport_cli("doctor", "new.memx", "--json").stdout)
    newer = [check for check in report["checks"] if f"{major}.99, " in check["says"].replace(";", ",")]
    assert [(check["level"], check["next_step"]) for check in newer if "read" in check["says"]][-1:] == [
        (level, step)
    ]
