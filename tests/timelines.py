"""Timelines for the tests of pictures."""

from __future__ import annotations

from pathlib import Path

from memexport import pipeline
from memexport.analysis.timeline_fold import TimelineFold
from memexport.model import (
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

START_NS = 1_770_000_000_000_000_000
MIB = 1 << 20
LEGACY_CONV = Path(__file__).parent / "data" / "legacy_conv.pickle"
TAGS = '</script><script>document.title="run"</script> <img src=x onerror=alert(1)>'
HOSTILE = TAGS + " \"'& $x^2$ {data}\n\x1b[2J\u202e😀"


def timeline_of(rows, **info):
    """The timeline of events as dicts; names and modules are texts, times count from the start."""
    tables = Tables()
    given = {
        "start_time_unix_ns": START_NS,
        "devices": [Device("cuda", 0)],
        "command_line": ("train.py",),
        **info,
    }
    recording = RecordingInfo(**given)
    fold = TimelineFold(recording, tables)
    if rows:
        fold.add(_batch(rows, tables, START_NS if recording.clock == "unix" else 0))
    return fold.result(RecordingEnd())


def _batch(rows, tables, start_ns):
    def column(name, null):
        return [row.get(name, null) for row in rows]

    strings = {
        name: [tables.strings.intern(row[name]) if row.get(name) else 0 for row in rows]
        for name in ("name", "module")
    }
    return EventBatch(
        kind=column("kind", EventKind.ALLOCATION),
        time_unix_ns=[start_ns + row.get("at", 0) for row in rows],
        device=column("device", 0),
        rank=column("rank", -1),
        phase=column("phase", 0),
        step=column("step", -1),
        category=column("category", 0),
        size_bytes=column("size", 0),
        allocated_bytes=column("allocated", -1),
        reserved_bytes=column("reserved", -1),
        address=column("address", 0),
        **strings,
    )


def small(name="aten.addmm.default", module="blocks.0.mlp", **info):
    """Two steps of 100 ms each; 10 MiB at the peak, at 160 ms: 4 of a parameter, 6 of an activation."""
    parameter = {"size": 4 * MIB, "address": 8, "category": Category.PARAMETER, "module": "head"}
    rows = [{**parameter, "allocated": 4 * MIB, "step": 0}]
    for step, size in enumerate((5, 6)):
        at = 100_000_000 * step
        block = {"step": step, "module": module, "name": name, "size": size * MIB, "address": 9}
        made = {"at": at + 60_000_000, "category": Category.ACTIVATION, "phase": Phase.FORWARD}
        freed = {"at": at + 90_000_000, "kind": EventKind.RELEASE, "phase": Phase.BACKWARD}
        rows.append({**block, **made, "allocated": (4 + size) * MIB, "reserved": 16 * MIB})
        rows.append({**block, **freed, "allocated": 4 * MIB, "reserved": 16 * MIB})
    rows += [
        {"kind": EventKind.MARKER, "name": name, "at": at, "device": -1}
        for name, at in (("validate", 150_000_000), ("oom", 161_000_000))
    ]
    return timeline_of(rows, **info)


def ranks(count):
    """A rank each with one allocation, the later the larger."""
    sizes = [(rank + 1) * MIB for rank in range(count)]
    return timeline_of([
        {"at": 1_000 * rank, "rank": rank, "size": size, "allocated": size, "address": 1}
        for rank, size in enumerate(sizes)
    ])  # fmt: skip


def legacy():
    """A recording without a clock."""
    with pipeline.open(LEGACY_CONV) as recording:
        return recording.timeline()
