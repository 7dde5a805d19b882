"""Makes rows of a trace's events, and keeps the tables that the rows' numbers stand for."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from memexport.model import StringTable
from memexport.sources._kineto_events import (
    MAX_DURATION_US,
    MAX_TIME_US,
    ROW,
    Event,
    Rows,
    Scalar,
    exact_nanoseconds,
    nanoseconds,
)
from memexport.sources._kineto_kinds import (
    MAX_NAME,
    MODULE_PREFIX,
    SPAN_CATEGORIES,
    Kinds,
    Role,
    TooManyError,
)

_TAKEN: Final = SPAN_CATEGORIES | {"python_function"}
_POINTS: Final = {"[memory]": Role.MEMORY, "[OutOfMemory]": Role.OUT_OF_MEMORY}
_MAX_BYTES: Final = 2**50
_MAX_ADDRESS: Final = 2**64 - 1
_MAX_COUNTER: Final = 2**60
_MAX_DEVICE_NUMBER: Final = 2**15
_MAX_DIGITS: Final = 10
_MAX_THREADS: Final = 2**16
_MAX_DEVICES: Final = 2**10

DEVICE_TYPES: Final = {
    0: "cpu", 1: "cuda", 2: "mkldnn", 3: "opengl", 4: "opencl", 5: "ideep", 6: "hip", 7: "fpga", 8: "maia",
    9: "xla", 10: "vulkan", 11: "metal", 12: "xpu", 13: "mps", 14: "meta", 15: "hpu", 16: "ve", 17: "lazy",
    18: "ipu", 19: "mtia", 20: "privateuseone",
}  # fmt: skip
"""torch's `c10/core/DeviceType.h`."""


class _Threads(dict[tuple[Scalar, Scalar], int]):
    """The number of each thread; the same one for 7 and "7", which old traces mix."""

    def __init__(self) -> None:
        super().__init__()
        self.by_text: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Scalar, Scalar]) -> int:
        text = str(key[0]), str(key[1])
        number = self[key] = self.by_text.setdefault(text, len(self.by_text))
        if number > _MAX_THREADS or len(self) > 2 * _MAX_THREADS:
            raise TooManyError(f"names more than {_MAX_THREADS} threads")
        return number


class _Devices(dict[tuple[Any, Any], int]):
    """The number of each (type, index); `_is_sound` saw to it that these are integers."""

    def __missing__(self, key: tuple[Any, Any]) -> int:
        number = self[key] = len(self)
        if number > _MAX_DEVICES:
            raise TooManyError(f"names more than {_MAX_DEVICES} devices")
        return number


class EventReader:
    """Takes the events of a trace in the order of the file.

    Attributes:
        kinds: what the column `kind` indexes.
        skipped: how many events were left out, because their values are not what they should be.
        changes: how many "[memory]" events each device had.
        totals: how many of them said what the device has allocated in all.
        failures: how many requests for memory failed.
    """

    def __init__(self, strings: StringTable) -> None:
        self.kinds = Kinds(strings)
        self.skipped = 0
        self.changes: Counter[int] = Counter()
        self.totals: Counter[int] = Counter()
        self.failures = 0
        self._steps: list[Rows] = []
        self._threads = _Threads()
        self._devices = _Devices()
        self._thread_names: dict[int, str] = {}

    def rows(self, events: list[Event], array: bytes) -> Rows:
        """The rows of those that matter, points after the others.

        Args:
            events: what was decoded.
            array: the JSON array that it was decoded from.

        Raises:
            TooManyError: no program has as many threads, devices or names.
        """
        self._name_threads(event for event in events if event.ph == "M" and event.name == "thread_name")
        spans = [event for event in events if event.cat in _TAKEN and _is_span(event)]
        points = [event for event in events if event.name in _POINTS]
        timed = [event for event in spans if _is_timed(event)]
        sound = [event for event in points if _is_sound(event) and _is_timed(event)]
        self.skipped += len(spans) - len(timed) + len(points) - len(sound)
        rows = np.zeros(len(timed) + len(sound), ROW)
        self._fill_times(rows, [*timed, *sound], events, array)
        self._fill_spans(rows[: len(timed)], timed)
        if sound:
            self._fill_points(rows[len(timed) :], sound)
        return rows

    def steps(self) -> Rows:
        """The rows of all steps so far."""
        return np.concatenate([np.empty(0, ROW), *self._steps])

    def devices(self) -> list[tuple[str, int | None]]:
        """The type, as torch calls it, and the index of each device by number."""
        return [
            (DEVICE_TYPES.get(kind, f"device type {kind}"), None if index < 0 else index)
            for kind, index in self._devices
        ]

    def devices_in_order(self) -> list[int]:
        """The numbers of the devices by type and index, the CPU first."""
        return [number for _, number in sorted(self._devices.items())]

    def threads(self) -> list[str]:
        """What to call each thread, by number."""
        names = self._thread_names
        return [_thread_title(tid, names.get(number)) for (_, tid), number in self._threads.by_text.items()]

    def pids(self) -> set[int]:
        """The processes that the threads are of."""
        return {int(pid) for pid, _ in self._threads.by_text if pid.isdecimal() and len(pid) < _MAX_DIGITS}

    def _fill_times(self, rows: Rows, kept: list[Event], events: list[Event], array: bytes) -> None:
        begin, coarse = nanoseconds([event.ts for event in kept])
        if coarse:
            place = {id(event): number for number, event in enumerate(events)}
            begin = exact_nanoseconds(array, [place[id(event)] for event in kept])
        rows["begin"] = begin
        rows["end"] = begin + nanoseconds([event.dur for event in kept])[0]

    def _fill_spans(self, rows: Rows, spans: list[Event]) -> None:
        kinds, threads = self.kinds, self._threads
        rows["kind"] = [kinds[event.cat, event.name] for event in spans]
        rows["thread"] = [threads[event.pid, event.tid] for event in spans]
        rows["device"] = rows["total"] = rows["reserved"] = -1
        if kinds.steps:
            self._steps.append(rows[np.isin(rows["kind"], kinds.steps)])

    def _fill_points(self, rows: Rows, points: list[Event]) -> None:
        threads, devices = self._threads, self._devices
        arguments = [event.args for event in points if event.args is not None]
        rows["kind"] = [_POINTS[event.name] for event in points]
        rows["thread"] = [threads[event.pid, event.tid] for event in points]
        rows["device"] = [devices[a.device_type, a.device_id] for a in arguments]
        rows["bytes"] = [a.bytes for a in arguments]
        rows["total"] = [_counter(a.total) for a in arguments]
        # torch has no reserved bytes to report for the CPU, and writes 0.
        rows["reserved"] = [_counter(a.reserved if a.device_type or a.reserved else None) for a in arguments]
        rows["address"] = [_address(a.address) for a in arguments]
        is_change = rows["kind"] == Role.MEMORY
        self.failures += len(rows) - int(np.count_nonzero(is_change))
        self.changes.update(rows["device"][is_change].tolist())
        self.totals.update(rows["device"][is_change & (rows["total"] >= 0)].tolist())

    def _name_threads(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.args is not None:
                with contextlib.suppress(ValueError):
                    name = msgspec.json.decode(event.args.name, type=str)
                    self._thread_names[self._threads[event.pid, event.tid]] = name[:MAX_NAME]


def _is_span(event: Event) -> bool:
    """Whether it is an operator, an annotation or a module's call, if it is of a category that is taken."""
    return event.ph == "X" and (event.cat != "python_function" or event.name.startswith(MODULE_PREFIX))


def _is_timed(event: Event) -> bool:
    return -MAX_TIME_US < event.ts < MAX_TIME_US and 0 <= event.dur < MAX_DURATION_US


def _is_sound(event: Event) -> bool:
    """Whether it says how many bytes of which device changed."""
    a = event.args
    return (
        a is not None
        and _is_whole(a.bytes, _MAX_BYTES)
        and _is_whole(a.device_type, _MAX_DEVICE_NUMBER)
        and _is_whole(a.device_id, _MAX_DEVICE_NUMBER)
    )


def _is_whole(value: Scalar, limit: int) -> bool:
    return type(value) is int and -limit <= value <= limit


def _counter(value: Scalar) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_COUNTER else -1


def _address(value: Scalar) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_ADDRESS else 0


def _thread_title(tid: str, name: str | None) -> str:
    if name is None:
        return f"thread {tid}"
    return name if tid in name.split() else f"thread {tid} ({name})"
