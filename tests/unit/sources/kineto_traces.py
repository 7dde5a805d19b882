"""Kineto traces, made in code, and the real ones in `tests/data`."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "kineto"
RESNET_2021 = FOLDER / "kineto_resnet50_num_workers_0_worker0.1623143566756.pt.trace.json.gz"
TORCH_2_13 = FOLDER / "torch-2.13-cpu.json.gz"

BASE_NS = 1_790_000_000_000_000_000


def memory(ts, size, total=None, *, device=(0, -1), tid=1, address=0x1000, reserved=0, **more):
    """A "[memory]" event; without `total`, as of 2021."""
    args = {"Bytes": size, "Device Type": device[0], "Device Id": device[1]}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": reserved, "Addr": address, "Ev Idx": 1}
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": tid}
    return event | {"ts": ts, "args": args} | more


def call(name, ts, dur, *, cat="cpu_op", tid=1, **args):
    """An operator, an annotation or a Python function."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def trace(*events, **members):
    """The text of a trace as Kineto lays it out."""
    members = {"schemaVersion": 1, "deviceProperties": [], "baseTimeNanoseconds": BASE_NS} | members
    head = json.dumps(members)[:-1]
    body = ",\n  ".join(json.dumps(event, indent=2) for event in events)
    return f'{head}, "traceEvents": [\n  {body}\n  ], "traceName": "made.json"}}'.encode()


ALIVE = memory(1.0, 512, 512)
"""One event that makes a trace readable."""
