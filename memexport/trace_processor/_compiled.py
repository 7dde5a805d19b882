"""trace_processor.wasm as machine code, kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memexport.errors import UsageError
from memexport.perfetto_bundle import trace_processor_wasm

if TYPE_CHECKING:
    import wasmtime


def compiled(engine: wasmtime.Engine) -> wasmtime.Module:
    """The module. Compiling takes seconds, so the code is kept; where that fails, it is compiled anew.

    Raises:
        UsageError: the wheel that carries it is not installed.
    """
    import wasmtime

    content = trace_processor_wasm().read_bytes()
    cached = _cached(content)
    if cached is not None:
        # What another version of wasmtime has kept, or what was cut, is refused here and replaced.
        with contextlib.suppress(wasmtime.WasmtimeError):
            return wasmtime.Module.deserialize_file(engine, str(cached))
    module = wasmtime.Module(engine, content)
    if cached is not None:
        with contextlib.suppress(OSError):
            _keep(bytes(module.serialize()), cached)
    return module


def new_engine() -> wasmtime.Engine:
    """What runs WebAssembly.

    Raises:
        UsageError: wasmtime is not installed.
    """
    try:
        import wasmtime
    except ModuleNotFoundError as error:
        raise UsageError("queries need wasmtime", hint="pip install 'memexport[viewer]'") from error
    return wasmtime.Engine()


def _cached(content: bytes) -> Path | None:
    """Where the code of this module is kept; None for a user without a home."""
    digest = hashlib.sha256(content).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return folder / "memexport" / f"trace_processor-{digest}.cwasm"


def _keep(code: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        stream.write(code)
    Path(stream.name).replace(path)  # in one step: several processes may compile at once
