"""pprof profiles meet what Perfetto, Pyroscope and `go tool pprof` demand."""

from __future__ import annotations

import gzip
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from pprof_importers import (
    assert_perfetto_shows_all,
    assert_pyroscope_takes_all,
    perfetto_takes_it_for_pprof,
)
from pprof_profiles import decoded

import memexport
from memexport import pipeline

DATA = Path(__file__).parents[2] / "data"
SOURCES = {
    "archive": DATA / "archives" / "1.0.memx",
    "python-and-cpp-stacks": DATA / "snapshots" / "silmont_mem_snapshot.pickle",
    "out-of-memory-without-a-clock": DATA / "snapshots" / "yiyi_oom.pickle",
    "kineto": DATA / "kineto" / "torch-2.13-cpu.json.gz",
    "without-a-clock": DATA / "legacy_conv.pickle",
}
GO = shutil.which("go")
needs_go = pytest.mark.skipif(GO is None, reason="go is not installed")


@pytest.fixture(params=SOURCES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pipeline.convert(SOURCES[request.param], tmp_path / f"{request.param}.pb.gz")
    return tmp_path / f"{request.param}.pb.gz"


def test_perfetto_knows_it_from_a_trace_of_its_own(written: Path) -> None:
    """Also by a beginning of it, and a trace of Perfetto's own is none."""
    content = gzip.decompress(written.read_bytes())
    assert perfetto_takes_it_for_pprof(content)
    assert perfetto_takes_it_for_pprof(content[:128])
    trace = written.with_name("trace.pftrace")
    pipeline.convert(SOURCES["archive"], trace)
    assert not perfetto_takes_it_for_pprof(trace.read_bytes())


def test_perfetto_leaves_nothing_of_it_out(written: Path) -> None:
    """Every sample has a stack, every frame its own file and line."""
    assert_perfetto_shows_all(decoded(written))


def test_pyroscope_takes_all_of_it(written: Path) -> None:
    """Within the limits that it has if nobody sets others."""
    size_bytes = len(gzip.decompress(written.read_bytes()))
    has_clock = "without-a-clock" not in written.name
    assert_pyroscope_takes_all(decoded(written), size_bytes, has_clock=has_clock)


def test_a_recording_with_stacks_meets_them_too(recorded: Path) -> None:
    """Each module of the model has a `forward`."""
    profile = decoded(recorded)
    assert_perfetto_shows_all(profile)
    size_bytes = len(gzip.decompress(recorded.read_bytes()))
    assert_pyroscope_takes_all(profile, size_bytes, has_clock=True)


@needs_go
def test_go_tool_pprof_shows_what_was_in_use_first(recorded: Path) -> None:
    """And, if it is asked, what was allocated: more, as it was released meanwhile."""
    assert "Type: inuse_space" in pprof("-top", recorded)
    in_use, allocated = total_bytes("inuse_space", recorded), total_bytes("alloc_space", recorded)
    with memexport.open(recorded.with_name("run.memx")) as recording:
        peak = recording.summary().devices["cpu"].allocated
    assert peak is not None
    assert (in_use, allocated > in_use) == (peak.peak, True)


@needs_go
def test_go_tool_pprof_finds_no_difference_between_a_profile_and_itself(recorded: Path) -> None:
    """By stack, so it takes the frames of both for the same."""
    shown = pprof("-top", "-diff_base", str(recorded), recorded)
    assert re.search(r"Showing nodes accounting for 0, +0% of", shown)


@needs_go
def test_go_tool_pprof_serves_a_flame_graph(recorded: Path) -> None:
    """Of what was allocated, with the operators that did."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [str(GO), "tool", "pprof", "-no_browser", "-http", address, str(recorded)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            page = fetched(f"http://{address}/ui/flamegraph?si=alloc_space")
        finally:
            server.terminate()
    assert "aten::addmm" in page and "alloc_space" in page


def test_the_checks_find_what_they_are_for(recorded: Path) -> None:
    """A field that pprof does not have, two frames that become one, a sample of nothing."""
    content = gzip.decompress(recorded.read_bytes())
    assert not perfetto_takes_it_for_pprof(b"\x82\x01\x00" + content)
    assert not perfetto_takes_it_for_pprof(content + b"\x82\x01\x00")
    profile = decoded(recorded)
    one, other = profile.location[:2]
    other.address, other.line[0].function_id = one.address, one.line[0].function_id
    with pytest.raises(AssertionError, match="frames of one address"):
        assert_perfetto_shows_all(profile)
    profile.sample.add(value=[0, 0, 0, 0], location_id=[1])
    with pytest.raises(AssertionError, match="a sample without one"):
        assert_pyroscope_takes_all(profile, 0, has_clock=True)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    outputs = [tmp_path / "run.memx", tmp_path / "run.pb.gz"]
    with memexport.Tracker(model, exporters=outputs, record_stacks=True) as tracker:
        for _ in range(3):
            model(torch.randn(8, 16)).sum().backward()
            model.zero_grad()
            tracker.step()
    return outputs[1]


def pprof(*arguments: object) -> str:
    """What `go tool pprof` prints."""
    command = [str(GO), "tool", "pprof", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def total_bytes(sample_type: str, profile: Path) -> int:
    shown = pprof("-top", "-unit=B", f"-sample_index={sample_type}", profile)
    found = re.search(r"of (\d+)B total", shown)
    assert found is not None
    return int(found[1])


def fetched(url: str) -> str:
    for last in (*[False] * 99, True):
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                return str(page.read(), "utf-8")
        except OSError:
            if last:
                raise
            time.sleep(0.1)
    raise AssertionError
