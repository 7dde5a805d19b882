"""What the pages in docs/ show works: shell and Python blocks run, against a real collector.

From top to bottom, in one folder. A ```bash block is a script, a ```python block a program; each must
succeed. What stands in an HTML comment right before a block says what else is to be done with it:

    <!-- shown only: REASON -->    it does not run
    <!-- stays running -->         it is a collector: it runs until the next one starts, or the page is over
    <!-- file: NAME -->            the reader saves it under this name; it does not run
    <!-- printed -->               each line of this ```text block was printed by the block before it, in this
                                   order; … stands for anything, and what is between the lines is not shown

Blocks write the addresses that a reader has. Here each is replaced by a free port of this machine, behind
which there is a collector that a block has started, or a server that takes what Prometheus or VictoriaMetrics
take.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from rotel_collector import free_port, wait_until
from test_readme import SAMPLES, SCRIPT, TESTS

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
SHOWN_ONLY, STAYS_RUNNING, PRINTED, FILE = "shown only: ", "stays running", "printed", "file: "
# A page without a block that runs is read by test_site.py only.
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if re.search("^```(bash|python)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
SECONDS = 120
GRPC, HTTP = "localhost:4317", "localhost:4318"
# The paths at which they take OTLP. https://prometheus.io/docs/guides/opentelemetry/,
# https://docs.victoriametrics.com/victoriametrics/integrations/opentelemetry/
STORES = {
    "localhost:9090": "/api/v1/otlp/v1/metrics",
    "localhost:8428": "/opentelemetry/v1/metrics",
}


class Block(NamedTuple):
    """A fenced block, the line its code starts on, and the comment before it."""

    language: str
    line: int
    code: str
    mark: str


def blocks(text):
    """All of them, in order."""
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        yield Block(found["language"], line, found["code"], found["mark"] or "")


class Store:
    """A server that takes metrics at one path and nothing else; `received` counts them."""

    def __init__(self, path):
        self.received = 0
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                is_right = self.path == path
                store.received += is_right
                self.send_response(200 if is_right else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Reader:
    """Somebody who does what a page says, in a folder of their own.

    Attributes:
        ran: how many blocks of each language did.
        printed: what the collectors have printed.
        stores: by the address that the page writes.
    """

    def __init__(self, folder):
        self.ran = {"bash": 0, "python": 0}
        self.printed = ""
        self.stores = {address: Store(path) for address, path in STORES.items()}
        self._folder = folder
        self._log = folder / "collector.log"
        self._collector = None
        self._last_output = ""
        self._here = {address: store.address for address, store in self.stores.items()}
        self._here |= {address: f"127.0.0.1:{free_port()}" for address in (GRPC, HTTP)}
        outside = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        self._environment = outside | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self._here[HTTP]}",
            "ROTEL_PID_FILE": str(folder / "rotel.pid"),
        }

    def do(self, page):
        """Everything that is to be run.

        Raises:
            AssertionError: it failed, or a block says neither that it runs nor why it does not.
        """
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}:{block.line}"
            if block.mark.startswith(SHOWN_ONLY):
                assert block.language == "bash", f"{where} would not run anyway"
                assert len(block.mark) > len(SHOWN_ONLY), f"{where} gives no reason"
            elif block.mark == STAYS_RUNNING:
                self._start_collector(block, where)
            elif block.mark.startswith(FILE):
                self._save(block)
            elif block.mark == PRINTED:
                self._check_printed(block, where)
            elif block.language == "bash":
                self._run(["bash", "-c", self._script(block)], block, where)
            elif block.language == "python":
                # The empty lines make a traceback's line numbers those of the page.
                self._run([sys.executable, "-c", "\n" * (block.line - 1) + block.code], block, where)
            elif block.language == "yaml":
                assert yaml.safe_load(block.code), where
            else:
                assert block.language in ("promql", "text"), f"{where} is in no language that is known here"

    def close(self):
        """End what is still running."""
        self._stop_collector()
        for store in self.stores.values():
            store.close()

    def _script(self, block):
        """With this Python, and with addresses that are free."""
        text = re.sub(r"localhost:\d+", lambda found: self._here.get(found[0], found[0]), block.code)
        functions = (
            f'{name}() {{ "{sys.executable}" {options} "$@"; }}'
            for name, options in (("memexport", "-m memexport"), ("python", ""))
        )
        return "\n".join(("set -euo pipefail", *functions, text))

    def _run(self, command, block, where):
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{where}\n{block.code}\n{done.stdout}{done.stderr}"
        self._last_output = done.stderr + done.stdout
        self.ran[block.language] += 1

    def _save(self, block):
        path = self._folder / block.mark.removeprefix(FILE)
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.code, encoding="utf-8")

    def _check_printed(self, block, where):
        """Of the last block; what it says on stderr comes first."""
        rest = self._last_output
        for line in filter(None, map(str.strip, block.code.splitlines())):
            found = re.search(re.escape(line).replace("…", ".*"), rest)
            assert found, f"{where} shows {line!r}, which was not printed (there) but:\n{rest}"
            rest = rest[found.end() :]

    def _start_collector(self, block, where):
        self._stop_collector()
        self._collector = subprocess.Popen(
            ["bash", "-c", self._script(block)],
            cwd=self._folder,
            env=self._environment,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for address in (GRPC, HTTP):
            wait_until(lambda address=address: self._listens(self._here[address]))
        self.ran["bash"] += 1

    def _listens(self, address):
        assert self._collector.poll() is None, self._log.read_text(encoding="utf-8")
        host, _, port = address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    def _stop_collector(self):
        if self._collector is not None:
            # The shell and the collector in it are a group of their own.
            os.killpg(self._collector.pid, signal.SIGTERM)
            self._collector.wait(SECONDS)
            self._collector = None
            self.printed += self._log.read_text(encoding="utf-8")


@pytest.fixture
def reader(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    for name, sample in SAMPLES.items():
        shutil.copyfile(TESTS / "data" / sample, tmp_path / name)
    started = Reader(tmp_path)
    yield started
    started.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_that_a_page_shows_runs(page, reader):
    reader.do(page)
    assert any(reader.ran.values())
    reader.close()
    if page.name == "opentelemetry.md":
        # What the page promises about them.
        assert "Name: memexport.memory.allocated" in reader.printed
        assert all(store.received for store in reader.stores.values())


def test_what_a_page_says_about_shell_blocks_is_done(tmp_path, reader):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- shown only: it would fail -->\n```bash\nexit 1\n```\n"
        "```bash\necho http://localhost:9090/x > address\n```\n"
        "```python\nopen('written', 'w').write('x')\n```\n"
        "```yaml\na: 1\n```\n"
        "<!-- file: folder/program.py -->\n```python\nprint('one'); print('two 2'); print('three')\n```\n"
        "```bash\npython folder/program.py\n```\n"
        "<!-- printed -->\n```text\none\n…\nth…e\n```\n"
    )
    reader.do(page)
    assert reader.ran == {"bash": 2, "python": 1}
    address = reader.stores["localhost:9090"].address
    assert (tmp_path / "address").read_text() == f"http://{address}/x\n"
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```bash\nfalse\ntrue\n```\n", "page.md:2"),
        ("\n```python\nraise LookupError('x')\n```\n", 'line 3, in <module>'),
        ("<!-- shown only:  -->\n```bash\nfalse\n```\n", "gives no reason"),
        ("```bash\necho 1\n```\n<!-- printed -->\n```text\n1\n1\n```\n", "shows '1', which was not"),
        ("```console\n$ false\n```\n", "in no language"),
        ("```\nfalse\n```\n", "in no language"),
    ],
)  # fmt: skip
def test_a_block_that_fails_or_that_nobody_knows_how_to_run_is_reported(tmp_path, reader, text, message):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=re.escape(message)):
        reader.do(page)


def test_a_store_takes_metrics_at_its_own_path_only(reader):
    for address, path in STORES.items():
        store = reader.stores[address]
        wrong = "/v1/metrics"
        for tried in (path, wrong):
            done = subprocess.run(
                [sys.executable, "-c", POST, f"http://{store.address}{tried}"], capture_output=True, text=True
            )
            assert json.loads(done.stdout) == (200 if tried == path else 404)
        assert store.received == 1


POST = """\
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], data=b"x").status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
