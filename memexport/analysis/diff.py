"""What one recording has more or less of than another: at their peaks, and step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from memexport.analysis.device_summary import DeviceSummary
from memexport.analysis.step_uses import StepUse
from memexport.analysis.summary import Summary
from memexport.analysis.text import human_bytes
from memexport.analysis.tolerance import Tolerance

_UNATTRIBUTED: Final = "unattributed"

_PART_PERCENT: Final = 1.0
"""Steps whose peaks differ by more than this part of A's have parted."""


@dataclass(frozen=True)
class LiveDifference:
    """What the allocations of an operator, called by a module, hold of a category at each of the two peaks.

    None where it is not known. The row "unattributed" of no module and no operator is what the allocations
    do not explain: what the counter says less all of them, and so may be negative.
    """

    category: str
    module: str | None
    operator: str | None
    a_bytes: int
    b_bytes: int

    @property
    def change(self) -> int:
        """How many bytes more B has."""
        return self.b_bytes - self.a_bytes


@dataclass(frozen=True)
class StepDifference:
    """A step that both have; None for what is not known."""

    step: int
    a_peak_bytes: int | None
    b_peak_bytes: int | None
    a_duration_ns: int | None
    b_duration_ns: int | None


@dataclass(frozen=True)
class DeviceDiff:
    """A device that both have.

    Attributes:
        a_peak_bytes: allocated at most; with `b_peak_bytes`, None where the counter is not known.
        rows: by category, module and operator, the largest change first, those that are equal too. Their
            changes add up to `gap`.
        steps: in order, those that both have.
        parts_at_step: the first of them whose peaks differ by more than 1 %; None if none does.
    """

    a_peak_bytes: int | None
    b_peak_bytes: int | None
    rows: tuple[LiveDifference, ...]
    steps: tuple[StepDifference, ...]
    parts_at_step: int | None

    @property
    def gap(self) -> int | None:
        """How many bytes higher B peaked; None where a counter is not known."""
        if self.a_peak_bytes is None or self.b_peak_bytes is None:
            return None
        return self.b_peak_bytes - self.a_peak_bytes

    def by(self, what: str) -> list[tuple[str | None, int, int]]:
        """Name, bytes of A and bytes of B by "category", "module" or "operator", the largest change first."""
        sums: dict[str | None, list[int]] = defaultdict(lambda: [0, 0])
        for row in self.rows:
            both = sums[getattr(row, what)]
            both[0] += row.a_bytes
            both[1] += row.b_bytes
        ordered = sorted(sums.items(), key=lambda pair: (-abs(pair[1][1] - pair[1][0]), pair[0] or ""))
        return [(name, a, b) for name, (a, b) in ordered]


@dataclass(frozen=True)
class Diff:
    """What B has more or less of than A. `str()` gives a page of 80 columns.

    Attributes:
        a: the name of the recording A.
        devices: those that both have, by name.
        only_in_a: the names of the other devices; likewise `only_in_b`.
    """

    a: str
    b: str
    devices: Mapping[str, DeviceDiff]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]

    def increases(self, tolerance: Tolerance) -> tuple[str, ...]:
        """A sentence for each device that peaks higher in B than is tolerated, or cannot be judged."""
        return tuple(self._increases(tolerance))

    def to_dict(self) -> dict[str, Any]:
        """What `memexport diff --json` prints; unknown values are None."""
        devices = {name: _device_dict(device) for name, device in self.devices.items()}
        only = {"only_in_a": list(self.only_in_a), "only_in_b": list(self.only_in_b)}
        return {"a": self.a, "b": self.b, "devices": devices, **only}

    def to_markdown(self) -> str:
        """The page as GitHub Markdown."""
        from memexport.analysis.diff_markdown import render_markdown

        return render_markdown(self)

    def __str__(self) -> str:
        from memexport.analysis.diff_report import render_text

        return render_text(self)

    def _increases(self, tolerance: Tolerance) -> Iterator[str]:
        if not self.devices:
            yield "no device is in both recordings"
        for name in self.only_in_b:
            yield f"{name} is in B only"
        for name, device in self.devices.items():
            a, b = device.a_peak_bytes, device.b_peak_bytes
            if a is None or b is None:
                yield f"{name}: the peak is not known in {'A' if a is None else 'B'}"
            elif b > tolerance.allows(a):
                yield f"{name} peaks {human_bytes(b - a)} higher than in A; {tolerance} more would be fine"


def compare(
    names: tuple[str, str],
    summaries: tuple[Summary, Summary],
    steps: tuple[Mapping[str, Mapping[int, StepUse]], Mapping[str, Mapping[int, StepUse]]],
) -> Diff:
    """The differences, from the summaries of both and their steps by device (`StepUseFold`)."""
    (a, b), (a_steps, b_steps) = summaries, steps
    return Diff(
        *names,
        devices={
            name: _device(device, b.devices[name], a_steps.get(name, {}), b_steps.get(name, {}))
            for name, device in a.devices.items()
            if name in b.devices
        },
        only_in_a=tuple(name for name in a.devices if name not in b.devices),
        only_in_b=tuple(name for name in b.devices if name not in a.devices),
    )


def _device(
    a: DeviceSummary, b: DeviceSummary, a_steps: Mapping[int, StepUse], b_steps: Mapping[int, StepUse]
) -> DeviceDiff:
    steps = tuple(
        StepDifference(
            step, use.peak_bytes, b_steps[step].peak_bytes, use.duration_ns, b_steps[step].duration_ns
        )
        for step, use in sorted(a_steps.items())
        if step in b_steps
    )
    return DeviceDiff(
        a_peak_bytes=a.allocated.peak if a.allocated else None,
        b_peak_bytes=b.allocated.peak if b.allocated else None,
        rows=_rows(a, b),
        steps=steps,
        parts_at_step=next((step.step for step in steps if _parts(step)), None),
    )


def _rows(a: DeviceSummary, b: DeviceSummary) -> tuple[LiveDifference, ...]:
    sums: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for side, device in enumerate((a, b)):
        for row in device.live_at_peak:
            sums[row.category, row.module, row.operator][side] += row.bytes
        sums[_UNATTRIBUTED, None, None][side] += _unexplained(device)
    rows = (LiveDifference(*key, *both) for key, both in sums.items() if any(both))
    return tuple(sorted(rows, key=lambda row: (-abs(row.change), -row.b_bytes, _texts(row))))


def _texts(row: LiveDifference) -> tuple[str, str, str]:
    return row.category, row.module or "", row.operator or ""


def _unexplained(device: DeviceSummary) -> int:
    if device.allocated is None:
        return 0
    return device.allocated.peak - sum(row.bytes for row in device.live_at_peak)


def _parts(step: StepDifference) -> bool:
    a, b = step.a_peak_bytes, step.b_peak_bytes
    return a is not None and b is not None and abs(b - a) > a * _PART_PERCENT / 100


def _device_dict(device: DeviceDiff) -> dict[str, Any]:
    sums = {
        f"by_{what}": [
            {what: name, "a_bytes": a, "b_bytes": b, "change": b - a} for name, a, b in device.by(what)
        ]
        for what in ("category", "module", "operator")
    }
    return {
        "a_peak_bytes": device.a_peak_bytes,
        "b_peak_bytes": device.b_peak_bytes,
        "gap": device.gap,
        **sums,
        "rows": [{**asdict(row), "change": row.change} for row in device.rows],
        "steps": [asdict(step) for step in device.steps],
        "parts_at_step": device.parts_at_step,
    }


def changed(rows: Iterable[LiveDifference], most: int) -> tuple[list[LiveDifference], list[LiveDifference]]:
    """The rows with the largest changes, at most so many; and the rest of those that changed."""
    different = [row for row in rows if row.change]
    return different[:most], different[most:]
