"""Operator-level memory telemetry for PyTorch.

Importing memexport imports neither torch nor NumPy: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memexport.analysis.selection import Selection
    from memexport.comparison import diff
    from memexport.errors import InputError, MemexportError, OutputError, UsageError
    from memexport.exporters.otel import OTelExporter
    from memexport.model import Category, EventBatch, EventKind, Phase, RecordingInfo
    from memexport.pipeline import Recording, convert, open  # noqa: A004 - the public name, as gzip.open is
    from memexport.tracker import Tracker

__version__ = "0.1.0"

_HOMES = {
    "Category": "memexport.model",
    "EventBatch": "memexport.model",
    "EventKind": "memexport.model",
    "InputError": "memexport.errors",
    "MemexportError": "memexport.errors",
    "OTelExporter": "memexport.exporters.otel",
    "OutputError": "memexport.errors",
    "Phase": "memexport.model",
    "Recording": "memexport.pipeline",
    "RecordingInfo": "memexport.model",
    "Selection": "memexport.analysis.selection",
    "Tracker": "memexport.tracker",
    "UsageError": "memexport.errors",
    "convert": "memexport.pipeline",
    "diff": "memexport.comparison",
    "open": "memexport.pipeline",
}

__all__ = [
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
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
