"""What pictures say of a recording in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Final

from memexport.analysis.text import human_bytes, human_time, operator_label, printable
from memexport.analysis.timeline import DeviceTimeline, LiveMoment, Timeline
from memexport.model import INDEX_CLOCK_NS

LONGEST_NAME: Final = 300
"""How many characters of a name a picture carries; what it shows of them is less."""


def title_of(timeline: Timeline, title: str | None) -> str:
    """The title that was given, else the program's name."""
    program = _program(timeline.info.command_line) or timeline.info.producer
    return printable(title or program or "Memory", LONGEST_NAME)


def _program(command: Sequence[str]) -> str | None:
    """What was run: the script or the module, not the interpreter or `memexport run` before it."""
    script = next((argument for argument in command if argument.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        return command[len(command) - command[::-1].index("-m")]
    return PurePath(script or command[0]).name if command else None


def facts_of(timeline: Timeline) -> Iterator[str]:
    """Where and when it was recorded, as far as that is known, and how much there is."""
    info = timeline.info
    if info.start_time_unix_ns is not None and timeline.has_clock:
        yield human_time(info.start_time_unix_ns)
    if info.host:
        yield printable(info.host, LONGEST_NAME)
    if info.rank is not None and (info.world_size or 1) > 1:
        yield f"rank {info.rank} of {info.world_size}"
    if info.torch_version:
        yield f"torch {printable(info.torch_version, LONGEST_NAME)}"
    yield f"{timeline.events:,} events" if timeline.events != 1 else "1 event"


def when(timeline: Timeline, moment: LiveMoment) -> str:
    """When it was: "at 1.234 s", "at event 26"."""
    if not timeline.has_clock:
        return f"at event {moment.time_ns // INDEX_CLOCK_NS:,}"
    return f"at {exact_duration(moment.time_ns)}"


def exact_duration(duration_ns: int) -> str:
    """To four digits or more, in the unit that suits it: "12.35 ms", "73.21 s"."""
    for size, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if duration_ns >= size:
            return f"{duration_ns / size:.2f} {unit}"
    return f"{duration_ns} ns"


def peak_sentence(timeline: Timeline, device: DeviceTimeline, characters: int) -> str:
    """What made the peak, and where: "Peak 3.14 GiB at 12.35 ms: aten::mm in layers.0, backward, step 2".

    Names are shortened until it has about so many characters.
    """
    peak = device.peak
    sentence = f"Peak {human_bytes(peak.allocated_bytes)} {when(timeline, peak)}"
    names = [name for name in (_operator(peak), peak.module) if name]
    step = f"step {peak.step}" if peak.step >= 0 else None
    places = [place for place in (peak.phase, step) if place]
    longest = (characters - len(sentence) - len(", ".join(places)) - 8) // max(1, len(names))
    who = " in ".join(printable(name, max(12, longest)) for name in names)
    rest = ", ".join(part for part in (who, *places) if part)
    return f"{sentence}: {rest}" if rest else sentence


def _operator(moment: LiveMoment) -> str | None:
    return operator_label(moment.operator) if moment.operator else None
