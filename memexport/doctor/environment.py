"""The surroundings: variables, the collector, the browser, the folder."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from memexport.doctor.check import Check
from memexport.viewer import has_browser

KNOWN_VARIABLES: Final = frozenset({"MEMEXPORT_OOM"})
"""The variables that memexport reads."""

_TIMEOUT_S: Final = 2.0
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def environment_checks(folder: Path) -> Iterator[Check]:
    """All of them; the folder is where recordings would be written."""
    yield _writable(folder)
    yield from _telemetry(os.environ)
    yield from _own_variables(os.environ)
    yield _browser()


def _writable(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        says = f"nothing can be written to {folder}: {error.strerror or error}"
        return Check("folder", "failure", says, "go to another folder, or name one with -o FOLDER/run.memx")
    return Check("folder", "ok", f"{folder} can be written to")


def _telemetry(variables: Mapping[str, str]) -> Iterator[Check]:
    """Only endpoints are shown: headers and certificates may be secrets."""
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        says = "OTEL_SDK_DISABLED=true: no metrics are exported"
        yield Check("opentelemetry", "warning", says, "unset OTEL_SDK_DISABLED")
    for name in _ENDPOINTS:
        if endpoint := variables.get(name, "").strip():
            yield _answers(name, endpoint)
            return
    yield Check("opentelemetry", "ok", "no OTEL_EXPORTER_OTLP_ENDPOINT: --otlp sends to this machine")


def _answers(name: str, endpoint: str) -> Check:
    """Whether there is someone at the address; what is there is not asked anything."""
    parts = urlsplit(endpoint)
    try:
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        port = None
    if parts.scheme not in _DEFAULT_PORTS or parts.hostname is None or port is None:
        return Check("opentelemetry", "failure", f"{name} is no http address", "http://HOST:4318")
    address = f"{parts.scheme}://{parts.hostname}:{port}"
    try:
        socket.create_connection((parts.hostname, port), _TIMEOUT_S).close()
    except OSError as error:
        says = f"nobody answers at {address}, where {name} sends metrics: {error.strerror or error}"
        # Nothing else stops for it: a collector may be started later.
        return Check("opentelemetry", "warning", says, f"start the collector, or correct {name}")
    return Check("opentelemetry", "ok", f"{address} answers ({name})")


def _own_variables(variables: Mapping[str, str]) -> Iterator[Check]:
    for name in sorted(name for name in variables if name.startswith("MEMEXPORT_")):
        if name in KNOWN_VARIABLES:
            yield Check("variables", "ok", f"{name}={variables[name]}")
        else:
            known = ", ".join(sorted(KNOWN_VARIABLES))
            yield Check("variables", "warning", f"{name} means nothing to memexport", f"it reads: {known}")


def _browser() -> Check:
    if has_browser():
        return Check("browser", "ok", "memexport view opens it")
    return Check("browser", "ok", "none here: memexport view prints the address to open elsewhere")
