"""`memexport view` from the command to the page: in processes of its own, and in the real UI in Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from perfetto_ui import CHROMIUM_OPTIONS, find_chromium
from port_9001 import port_9001

from memexport import pipeline, viewer
from memexport.cli.traces import trace_of
from memexport.perfetto_bundle import ui_folder

DATA = Path(__file__).parents[1] / "data"
SNAPSHOT = DATA / "snapshots" / "drisspg_mini_snapshot.pickle"
ORIGIN = {"Origin": "https://ui.perfetto.dev"}
SECONDS = 60


@contextlib.contextmanager
def memexport(*arguments, **environment):
    """A running `memexport`, and the address that it prints first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "memexport", *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def fetched(url):
    """The trace that the page at this address would load."""
    trace_url = dict(parse_qsl(url.partition("#!/?")[2]))["url"]
    request = urllib.request.Request(trace_url, headers=ORIGIN)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return answer.read()


@pytest.fixture
def recording(tmp_path):
    return Path(shutil.copy(DATA / "legacy_conv.pickle", tmp_path / "old run#1.pickle"))


def test_a_recording_is_converted_served_once_and_then_it_is_over(recording, tmp_path, load_trace):
    with port_9001(), memexport("view", recording, "--no-browser") as (process, url):
        content = fetched(url)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
    assert "old_run_1.pickle.pftrace" in url
    assert "Open this address in a browser" in said
    (tmp_path / "got.pftrace").write_bytes(content)
    assert load_trace(tmp_path / "got.pftrace").scalar("SELECT COUNT(*) FROM slice") > 0
    with pytest.raises(urllib.error.URLError):
        fetched(url)


def test_a_trace_is_served_as_it_is(recording, tmp_path):
    for name in ("run.pftrace", "run.json"):
        pipeline.convert(recording, tmp_path / name)
        with port_9001(), memexport("view", tmp_path / name, "--no-browser") as (process, url):
            assert fetched(url) == (tmp_path / name).read_bytes()
            assert process.wait(SECONDS) == 0
        assert "visStart" in url


@pytest.mark.parametrize("option", [[], ["--offline"]], ids=["online", "offline"])
def test_ctrl_c_ends_it_with_130_and_leaves_no_temporary_file(recording, tmp_path, option):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with (
        port_9001(),
        memexport("view", recording, "--no-browser", *option, TMPDIR=str(temporary)) as (process, url),
    ):
        assert url.startswith("http")
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert list(temporary.iterdir()) == []


def test_the_users_browser_is_asked_to_open_the_address(recording, tmp_path):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    with port_9001(), memexport("view", recording, BROWSER=f"{browser} %s") as (process, url):
        while not opened.exists():
            assert process.poll() is None
        assert opened.read_text().strip() == url
        fetched(url)
        assert process.wait(SECONDS) == 0


def test_without_a_browser_it_says_what_to_do_also_from_another_machine(recording):
    none = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": "", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    with port_9001(), memexport("view", recording, **none) as (process, url):
        fetched(url)
        _, said = process.communicate(timeout=SECONDS)
    assert "Open this address in a browser" in said
    assert "ssh -L 9001:127.0.0.1:9001" in said


def test_what_is_no_trace_and_no_recording_is_an_input_error(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("notes.txt", "missing.pftrace", "missing.json"):
        command = [sys.executable, "-m", "memexport", "view", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert len(done.stderr.splitlines()) <= 2


STATE = """() => {
  const trace = app.trace, shown = trace.timeline.visibleWindow.toTimeSpan();
  return {
    pinned: trace.workspace.pinnedTracks.map(track => track.name),
    shown: [Number(shown.start), Number(shown.end)],
    title: trace.traceInfo.traceTitle,
  };
}"""


@contextlib.contextmanager
def chromium_page(url):
    """What the UI at this address shows once the trace is there.

    ui.perfetto.dev is answered with the bundled copy: the origin is the real one, and so are the browser's
    rules for what that may fetch. A person is asked whether it may reach this machine; here nobody is.
    """
    from playwright.sync_api import sync_playwright

    options = [*CHROMIUM_OPTIONS, "--disable-features=LocalNetworkAccessChecks"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=options)
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.add_init_script("delete Navigator.prototype.serviceWorker")
        page.route("https://ui.perfetto.dev/**", _bundled)
        try:
            page.goto(url, wait_until="commit")
            page.wait_for_function("() => window.app?.trace && !app.isLoadingTrace", timeout=60_000)
            yield page
        finally:
            browser.close()


def _bundled(route):
    file = ui_folder() / (urlsplit(route.request.url).path.lstrip("/") or "index.html")
    route.fulfill(path=file) if file.is_file() else route.fulfill(status=404)


@pytest.mark.ui
@pytest.mark.skipif(find_chromium() is None, reason="needs chromium")
@pytest.mark.parametrize("offer", [viewer.online, viewer.offline], ids=["online", "offline"])
def test_the_real_ui_shows_the_peak_with_its_counter_pinned(offer, tmp_path):
    source = Path(shutil.copy(SNAPSHOT, tmp_path / "run #1?.pickle"))
    with (
        trace_of(str(source)) as trace,
        port_9001(),
        offer(trace.path, trace.name, trace.window) as viewing,
        chromium_page(viewing.url) as page,
    ):
        page.wait_for_function("() => app.trace.workspace.pinnedTracks.length", timeout=20_000)
        assert viewing.wait(SECONDS)
        state = page.evaluate(STATE)
        page.screenshot(path=tmp_path / "page.png")
    assert state["pinned"] == ["cuda:0 allocated", "cuda:0 reserved"]
    assert state["shown"] == list(trace.window)
    assert state["title"].startswith("run_1_.pickle.pftrace")
    assert (tmp_path / "page.png").stat().st_size > 20_000
