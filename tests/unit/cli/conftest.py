"""What the tests of the command line share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from memexport.cli import main

LEGACY_CONV = Path(__file__).parents[2] / "data" / "legacy_conv.pickle"


@pytest.fixture
def memexport_cli(tmp_path, monkeypatch):
    """Call `memexport` with these arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [str(a) for a in arguments], prog_name="memexport")


@pytest.fixture
def recording(tmp_path):
    """A recording of 26 operators."""
    return Path(shutil.copy(LEGACY_CONV, tmp_path / "old.pickle"))
