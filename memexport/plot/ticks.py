"""Where axes have ticks, and what stands beside them."""

from __future__ import annotations

import math
from typing import NamedTuple

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


class Ticks(NamedTuple):
    """Ascending places on an axis, and their labels."""

    places: list[float]
    labels: list[str]


def byte_ticks(highest: float, most: int = 6) -> Ticks:
    """From 0 up to the highest, at steps of a power of two: all in one binary unit."""
    highest = max(1.0, highest)
    step = 2.0 ** max(0, math.ceil(math.log2(highest / most)))
    unit = min(len(_BYTE_UNITS) - 1, int(math.log2(highest) // 10))
    places = [number * step for number in range(int(highest // step) + 1)]
    labels = [f"{place / 1024**unit:g} {_BYTE_UNITS[unit]}" if place else "0" for place in places]
    return Ticks(places, labels)


def time_ticks(begin_ns: float, end_ns: float, most: int = 8) -> Ticks:
    """At steps of 1, 2 or 5 times a power of ten nanoseconds, in the unit that suits the last."""
    size, unit = next((u for u in _TIME_UNITS if end_ns >= u[0]), _TIME_UNITS[-1])
    step = decimal_step(end_ns - begin_ns, most)
    digits = max(0, -math.floor(math.log10(step / size) + 1e-9))
    places = _multiples(begin_ns, end_ns, step)
    return Ticks(places, [f"{place / size:.{digits}f} {unit}" for place in places])


def event_ticks(begin: float, end: float, most: int = 8) -> Ticks:
    """Numbers of events, whole ones."""
    step = max(1.0, decimal_step(end - begin, most))
    places = _multiples(begin, end, step)
    return Ticks(places, [f"{place:,.0f}" for place in places])


def decimal_step(length: float, most: int) -> float:
    """1, 2 or 5 times a power of ten: the least at which so long an axis has at most so many steps."""
    rough = max(length, 1.0) / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _multiples(begin: float, end: float, step: float) -> list[float]:
    first, last = math.ceil(begin / step), math.floor(end / step)
    return [number * step for number in range(first, last + 1)]
