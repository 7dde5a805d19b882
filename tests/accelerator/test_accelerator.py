"""Runs the tests of `on_device/`, each file in a process whose torch has an accelerator.

torch starts the threads of its autograd engine once, for the devices that it knows by then, and an
accelerator cannot be taken away again: no other test would be what it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import accelerator
import pytest

FILES = sorted((Path(__file__).parent / "on_device").glob("test_*.py"))


@pytest.fixture(scope="module")
def library() -> Path:
    if accelerator.compiler() is None:
        pytest.skip("there is no C++ compiler (g++, or CXX) to build an accelerator with")
    return accelerator.build()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("test_"))
def test_on_an_accelerator(file: Path, library: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Its operators are small: threads of theirs would only take time from the other tests.
    environment |= {accelerator.LIBRARY: str(library), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
