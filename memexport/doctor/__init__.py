"""`memexport doctor`: whether this installation can do what it is there for, and whether files are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memexport.doctor.check import Check, Level
from memexport.doctor.environment import environment_checks
from memexport.doctor.files import file_checks
from memexport.doctor.packages import package_checks
from memexport.doctor.tracking import tracking_checks


def installation_checks() -> Iterator[Check]:
    """Python, packages, the tracker with this torch, and the surroundings; each as soon as it is known."""
    yield from package_checks()
    yield from tracking_checks()
    yield from environment_checks(Path.cwd())


__all__ = ["Check", "Level", "file_checks", "installation_checks"]
