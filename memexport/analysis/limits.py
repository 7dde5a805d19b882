"""Limits on what a recording may take, and whether it keeps them.

A limit that cannot be judged, because a counter or the steps are not known, is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from memexport.analysis.growth import LEAST_SAMPLES, DeviceGrowth
from memexport.analysis.summary import Summary
from memexport.analysis.text import human_bytes, printable
from memexport.analysis.tolerance import Tolerance
from memexport.errors import UsageError

LimitName = Literal["max-peak", "max-growth", "baseline"]

_STEPS_NEEDED: Final = LEAST_SAMPLES + 1


@dataclass(frozen=True)
class Limits:
    """What a recording may take; None: no such limit.

    Attributes:
        max_peak_bytes: allocated at most.
        max_growth_bytes: more live bytes after each step, see `memexport.analysis.growth`.
        baseline: a recording whose peaks must not be exceeded by more than the tolerance.
        devices: the names of those that are judged; empty: all.
        above_start: compare the peak with what was allocated at the start already: what the program added.
    """

    max_peak_bytes: int | None = None
    max_growth_bytes: int | None = None
    baseline: Summary | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    devices: tuple[str, ...] = ()
    above_start: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether one limit was kept.

    Attributes:
        limit: which.
        reasons: a sentence for each device that does not keep it; empty if all do.
        facts: a sentence for each device that does.
        over_bytes: by how much the worst device is over the limit (negative: below it), by the step for
            growth; None where one cannot be judged.
    """

    limit: LimitName
    reasons: tuple[str, ...]
    facts: tuple[str, ...]
    over_bytes: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether every device keeps it."""
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """What JSON says of it."""
        reasons, facts = list(self.reasons), list(self.facts)
        return {"limit": self.limit, "passed": self.is_kept, "reasons": reasons, "facts": facts}

    def lines(self, prefix: str = "") -> list[str]:
        """What a terminal shows of it: a line for each device, with `prefix` before the sentence."""
        lines = [f"FAIL  {self.limit}: {prefix}{printable(reason)}" for reason in self.reasons]
        return [*lines, *(f"ok    {self.limit}: {prefix}{printable(fact)}" for fact in self.facts)]


def limit_names(limits: Limits) -> tuple[LimitName, ...]:
    """Those that there are, in their order."""
    given: dict[LimitName, object] = {
        "max-peak": limits.max_peak_bytes,
        "max-growth": limits.max_growth_bytes,
        "baseline": limits.baseline,
    }
    return tuple(name for name, limit in given.items() if limit is not None)


def judge(summary: Summary, limits: Limits) -> tuple[Verdict, ...]:
    """A verdict for each limit that there is, in the order of `Limits`."""
    judges: dict[LimitName, _Judge] = {
        "max-peak": _judge_peak,
        "max-growth": _judge_growth,
        "baseline": _judge_against_baseline,
    }
    return tuple(_verdict(name, summary, limits, judges[name]) for name in limit_names(limits))


@dataclass(frozen=True)
class _Finding:
    is_kept: bool
    sentence: str
    over_bytes: int | None = None


_Judge = Callable[[Summary, str, Limits], _Finding]


def _verdict(name: LimitName, summary: Summary, limits: Limits, judge_device: _Judge) -> Verdict:
    findings = list(_findings(name, summary, limits, judge_device))
    over_bytes = [finding.over_bytes for finding in findings]
    known = [over for over in over_bytes if over is not None]
    return Verdict(
        name,
        reasons=tuple(finding.sentence for finding in findings if not finding.is_kept),
        facts=tuple(finding.sentence for finding in findings if finding.is_kept),
        over_bytes=max(known, default=None) if len(known) == len(over_bytes) else None,
    )


def _findings(name: LimitName, summary: Summary, limits: Limits, judge_device: _Judge) -> Iterator[_Finding]:
    devices = list(limits.devices or summary.devices)
    if name == "baseline" and limits.baseline is not None and not limits.devices:
        devices += [device for device in limits.baseline.devices if device not in devices]
    if not devices:
        # A program that was watched from its start and touched no device has allocated nothing.
        yield _Finding(limits.above_start and name == "max-peak", "the recording knows of no device")
    for device in devices:
        if device in summary.devices:
            yield judge_device(summary, device, limits)
        else:
            known = ", ".join(summary.devices) or "none"
            yield _Finding(False, f"{device} is not in the recording; its devices: {known}")


def _judge_peak(summary: Summary, name: str, limits: Limits) -> _Finding:
    counter, limit = summary.devices[name].allocated, limits.max_peak_bytes or 0
    if counter is None:
        return _Finding(False, f"{name}: what is allocated is not known")
    peak = counter.peak - counter.start if limits.above_start else counter.peak
    above = " above the start" if limits.above_start else ""
    where = _where(summary, name)
    if peak > limit:
        return _Finding(
            False,
            f"{name} peaked at {human_bytes(peak)}{above}, {human_bytes(peak - limit)} over the limit of"
            f" {human_bytes(limit)}{where}",
            peak - limit,
        )
    fact = f"{name} peaked at {human_bytes(peak)}{above}, of {human_bytes(limit)}"
    return _Finding(True, fact, peak - limit)


def _where(summary: Summary, name: str) -> str:
    device = summary.devices[name]
    module = f" of {device.peak_module}" if device.peak_module else ""
    phase = f" ({device.peak_phase})" if device.peak_phase else ""
    return f", in {device.peak_operator}{module}{phase}" if device.peak_operator else ""


def _judge_growth(summary: Summary, name: str, limits: Limits) -> _Finding:
    growth, limit = summary.growth.get(name), limits.max_growth_bytes or 0
    if growth is None:
        return _Finding(False, f"{name}: {_too_few(summary.steps)}")
    slope = growth.total.bytes_per_step
    text = f"{name} grows by {human_bytes(slope)} a step over {growth.steps_compared} steps"
    if slope > limit:
        reason = f"{text}, and {human_bytes(limit)} are allowed{_most_of_it(growth)}"
        return _Finding(False, reason, slope - limit)
    return _Finding(True, f"{text}, of {human_bytes(limit)}", slope - limit)


def _too_few(steps: int) -> str:
    there_are = "the recording has no steps" if not steps else f"only {steps} steps were recorded"
    return f"growth needs {_STEPS_NEEDED} steps, and {there_are}"


def _most_of_it(growth: DeviceGrowth) -> str:
    named = [row for row in growth.suspects if row.module]
    return f"; {human_bytes(named[0].trend.bytes_per_step)} of it in {named[0].module}" if named else ""


def _judge_against_baseline(summary: Summary, name: str, limits: Limits) -> _Finding:
    if limits.baseline is None:
        raise UsageError("there is no baseline")
    base, counter = limits.baseline.devices.get(name), summary.devices[name].allocated
    if base is None or base.allocated is None or counter is None:
        lacking = "the recording" if counter is None else "the baseline"
        return _Finding(False, f"{name}: what is allocated is not known in {lacking}")
    peak, before = counter.peak, base.allocated.peak
    text = f"{name} peaked at {human_bytes(peak)}, in the baseline at {human_bytes(before)}"
    over = peak - limits.tolerance.allows(before)
    if over > 0:
        return _Finding(False, f"{text}: {_more(peak, before)}, and {limits.tolerance} would be fine", over)
    return _Finding(True, text, over)


def _more(peak: int, before: int) -> str:
    percent = f" ({(peak - before) / before:+.1%})" if before else ""
    return f"{human_bytes(peak - before)} more{percent}"
