"""A small recording with every kind of event, for the formats of the registry."""

from __future__ import annotations

from dataclasses import dataclass

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

END = RecordingEnd(warnings=("careful",), dropped_events=2, alloc_retries=1, ooms=0)
START_NS = 1_770_000_000_000_000_000


@dataclass
class Recorded:
    """A recording that is still being made: strings and devices come with the second batch."""

    info: RecordingInfo
    tables: Tables

    def batches(self):
        """Two batches, with new strings and a new device in the second."""
        yield self._step(0, "layers.0", Device("cpu"))
        yield self._step(1, 'layers.1 \x1b[2J\u202e"\\', Device("cuda", 0))

    def _step(self, step, module, device):
        self.info.devices.append(device)
        intern = self.tables.strings.intern
        kinds = [
            EventKind.MARKER,
            EventKind.ALLOCATION,
            EventKind.OPERATOR,
            EventKind.RELEASE,
            EventKind.SAMPLE,
        ]
        operator = intern("aten.mm.default")
        return EventBatch(
            kind=[*kinds, EventKind.SPAN],
            time_unix_ns=[START_NS + step * 10_000 + n * 1_000 for n in (0, 1, 1, 3, 4, 0)],
            duration_ns=[-1, -1, 1_500, -1, -1, 5_000],
            name=[intern("start"), operator, operator, operator, 0, intern("step")],
            module=[0, *[intern(module)] * 3, 0, 0],
            thread=[intern("MainThread")] * 6,
            phase=[Phase.UNKNOWN, *[Phase.FORWARD] * 3, Phase.UNKNOWN, Phase.UNKNOWN],
            category=[0, Category.ACTIVATION, 0, Category.ACTIVATION, 0, 0],
            device=[-1, step, step, step, step, -1],
            step=step,
            size_bytes=[-(2**63), 512, 512, 512, -(2**63), -(2**63)],
            allocated_bytes=[-1, 512, 512, 0, 0, -1],
            active_bytes=[-1, 512, 512, 0, 0, -1],
            reserved_bytes=-1,
            address=[0, 7, 0, 7, 0, 0],
        )


def export(recording, exporter):
    """Send the whole recording to the exporter."""
    exporter.begin(recording.info, recording.tables)
    for batch in recording.batches():
        exporter.write(batch)
    exporter.end(END)
