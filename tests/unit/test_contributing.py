"""What CONTRIBUTING.md teaches works: its exporter, under its line in the registry, keeps the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from bench.synthetic import synthetic_batches

import memexport.exporters
from memexport import pipeline, registry
from memexport.exporters import FileDestination
from memexport.exporters.archive import ArchiveExporter
from memexport.model import EventBatch, RecordingEnd

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MODULE, LINE = (
    textwrap.dedent(code)
    for code in re.findall(r"^ *```python\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
)
# What a contributor does by hand: the module beside the others, the line in the registry.
PLUGIN = """\
import memexport.exporters
from memexport import registry
from memexport.registry import Format
memexport.exporters.__path__.append({folder!r})
registry.EXPORTERS += (
{line}
)
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the example as a module."""
    (tmp_path / "step_peaks.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def format_(folder, monkeypatch):
    """The example's format, in the registry."""
    (added,) = eval(f"({LINE.rstrip()})", {"Format": registry.Format})
    monkeypatch.setattr(memexport.exporters, "__path__", [*memexport.exporters.__path__, str(folder)])
    monkeypatch.setattr(registry, "EXPORTERS", (*registry.EXPORTERS, added))
    yield added
    sys.modules.pop("memexport.exporters.step_peaks", None)


def test_the_example_exporter_writes_the_peak_of_each_step(format_, tmp_path):
    info, tables, stream = synthetic_batches(8_000)
    batches = list(stream)
    archive = ArchiveExporter(FileDestination(tmp_path / "run.memx"))
    archive.begin(info, tables)
    for batch in batches:
        archive.write(batch)
    archive.end(RecordingEnd())
    pipeline.convert(tmp_path / "run.memx", tmp_path / "run.peaks.csv")
    events = EventBatch.concat(batches)
    steps = sorted({*events.step.tolist()} - {-1})
    assert len(steps) > 1
    assert (tmp_path / "run.peaks.csv").read_text().splitlines() == [
        "step,device,peak_allocated_bytes",
        *(f"{s},cuda:0,{events.allocated_bytes[events.step == s].max()}" for s in steps),
    ]


def test_the_example_exporter_passes_the_contract_tests_once_its_line_is_in_the_registry(folder):
    (folder / "with_step_peaks.py").write_text(PLUGIN.format(folder=str(folder), line=LINE))
    options = ["-p", "with_step_peaks", "-p", "no:cacheprovider", "-k", "step_peaks", "-q"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/contract/test_every_exporter.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
    assert re.search(r"\d{2} passed", result.stdout)


def test_the_example_exporter_is_in_this_projects_style(folder):
    command = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml")]
    result = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_every_path_and_make_target_it_names_exists():
    made_by_a_contributor = {"memexport/exporters/step_peaks.py", "tests/unit/exporters/test_step_peaks.py"}
    new = re.compile(r"NAME|VERSION|/v2/")
    named = set(re.findall(r"(?:memexport|tests|tools|schemas|docs)/[\w./-]*\w/?", TEXT))
    missing = {path for path in named if not (ROOT / path).exists() and not new.search(path)}
    assert missing <= made_by_a_contributor
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (test|demo|bench|pictures|lint)\b", TEXT)) <= targets
