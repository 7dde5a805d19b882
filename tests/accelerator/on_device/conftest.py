"""Tests for a process of their own, with the accelerator of `accelerator.py`; elsewhere they are none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "tracker"))

import accelerator

collect_ignore_glob = [] if accelerator.LIBRARY in os.environ else ["test_*.py"]
if accelerator.LIBRARY in os.environ:
    accelerator.load(Path(os.environ[accelerator.LIBRARY]))
