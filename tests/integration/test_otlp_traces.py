"""Spans through a real collector, which prints what it received."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from rotel_collector import AGENT, SECONDS, _listens, free_port, wait_until

SCRIPT = """
import torch
from opentelemetry import trace
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(32, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_receives_a_span_of_each_step_with_its_memory(tmp_path, protocol):
    (tmp_path / "train.py").write_text(SCRIPT)
    ports = {"grpc": free_port(), "http/protobuf": free_port()}
    command = [
        AGENT, "start", "--pid-file", tmp_path / "pid", "--log-file", tmp_path / "log",
        "--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed",
        "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}",
        "--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}",
    ]  # fmt: skip
    with (tmp_path / "printed").open("wb") as output:
        collector = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    for port in ports.values():
        wait_until(lambda port=port: _listens(port))
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[protocol]}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "RANK": "3",
    }
    run = [sys.executable, "-m", "memexport", "run", "--otlp-traces", "train.py"]
    done = subprocess.run(run, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    collector.terminate()
    collector.wait(SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    printed = (tmp_path / "printed").read_text()
    assert len(re.findall(r"Name\s*: training step", printed)) == 4
    for name in ("forward", "backward", "optimizer"):
        assert len(re.findall(rf"Name\s*: {name}\n", printed)) == 4
    for attribute in ("memexport.step", "memexport.rank", "memexport.memory.allocated.peak.cpu"):
        assert attribute in printed
