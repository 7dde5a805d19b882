"""One device in a summary: its counters, and what was live when `allocated` was highest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from memexport.analysis.breakdown import (
    LiveBytes,
    ModuleBytes,
    OperatorBytes,
    by_all,
    by_category,
    by_module,
    by_operator,
)
from memexport.analysis.failed_requests import FailedRequest
from memexport.analysis.live import Allocations
from memexport.analysis.place_fold import Counter, Moment, PlaceFold
from memexport.analysis.stacks import StackBytes, Stacks
from memexport.model import Tables

TOP: Final = 20
"""How many operators and modules a summary lists."""


@dataclass(frozen=True)
class CounterSummary:
    """A device counter in bytes: at the start, its maximum from there on, and last."""

    start: int
    peak: int
    end: int


@dataclass(frozen=True)
class DeviceSummary:
    """One device of one rank.

    Attributes:
        allocated: with `active` and `reserved`, the device's counters; None for one that is not known.
        peak_time_unix_ns: when `allocated` first reached its peak; with `peak_operator`, `peak_module` and
            `peak_phase`, the event at which it did. None for what is not known.
        categories_at_peak: bytes by category at that event, largest first. They add up to the peak: what no
            allocation explains is "unattributed".
        modules_at_peak: the `TOP` modules by bytes at that event.
        operators_at_peak: the `TOP` operators by what they allocated of that.
        fragmentation_at_peak: the bytes that were reserved but not active after that event: free, but in
            pieces that may be too small, or rounded away. None where a counter is not known.
        stacks_at_peak: the `TOP` stacks by bytes at that event; empty if no stack is known.
        failed_requests: the first ones that the device had no memory for.
        reserved_at_peak: the counter after that event. With `code_at_peak` only for the report, not in the
            JSON.
        code_at_peak: like `stacks_at_peak`, by the innermost frames of the user's own code.
        live_at_peak: the allocations of that event by category, module and operator, all of them: what the
            device counts beyond them is not in it. Not in the JSON.
    """

    allocated: CounterSummary | None
    active: CounterSummary | None
    reserved: CounterSummary | None
    peak_time_unix_ns: int | None
    peak_operator: str | None
    peak_module: str | None
    peak_phase: str | None
    categories_at_peak: Mapping[str, int]
    modules_at_peak: tuple[ModuleBytes, ...]
    operators_at_peak: tuple[OperatorBytes, ...]
    fragmentation_at_peak: int | None
    stacks_at_peak: tuple[StackBytes, ...]
    failed_requests: tuple[FailedRequest, ...]
    reserved_at_peak: int | None
    code_at_peak: tuple[StackBytes, ...]
    live_at_peak: tuple[LiveBytes, ...]


def device_summary(fold: PlaceFold, tables: Tables) -> DeviceSummary:
    """What has been folded so far comes to."""
    moment, peak = fold.peak, fold.counters["allocated"].peak
    live = live_at(moment)
    stacks = Stacks(live, peak, tables)
    return DeviceSummary(
        allocated=_counter(fold.counters["allocated"]),
        active=_counter(fold.counters["active"]),
        reserved=_counter(fold.counters["reserved"]),
        peak_time_unix_ns=moment.time_unix_ns if moment else None,
        peak_operator=moment.operator if moment else None,
        peak_module=moment.module if moment else None,
        peak_phase=moment.phase if moment else None,
        categories_at_peak=by_category(live, peak),
        modules_at_peak=by_module(live, peak, tables.strings)[:TOP],
        operators_at_peak=by_operator(live, peak, tables.strings)[:TOP],
        fragmentation_at_peak=_unused(moment),
        stacks_at_peak=stacks.whole(TOP),
        failed_requests=fold.failed_requests.all(),
        reserved_at_peak=moment.reserved_bytes if moment else None,
        code_at_peak=stacks.own_code(TOP),
        live_at_peak=by_all(live, tables.strings),
    )


def live_at(moment: Moment | None) -> Allocations:
    """What was live at a moment; nothing where it is not known."""
    return moment.live() if moment else Allocations.none()


def _unused(moment: Moment | None) -> int | None:
    """What was reserved but not active; None where that is unknown or the two contradict each other."""
    if moment is None or moment.active_bytes is None or moment.reserved_bytes is None:
        return None
    unused = moment.reserved_bytes - moment.active_bytes
    return unused if unused >= 0 else None


def _counter(counter: Counter) -> CounterSummary | None:
    if counter.start is None or counter.peak is None or counter.end is None:
        return None
    return CounterSummary(counter.start, counter.peak, counter.end)
