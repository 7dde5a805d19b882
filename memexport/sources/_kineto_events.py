"""The events of a Kineto trace: what is decoded of each, and their rows.

Only the fields below become Python objects, and only of events that say something about memory or about where
it was used do they become rows. Layouts are those of torch 1.8 to 2.13: `third_party/kineto`,
`libkineto/src/output_json.cpp`, and `torch/csrc/profiler/collection.cpp`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

ROW: Final = np.dtype(
    [
        ("begin", "i8"),  # nanoseconds after the file's base time
        ("end", "i8"),  # = begin, of a point
        ("kind", "u4"),  # index into `Kinds.list`; of a point, `Role.MEMORY` or `Role.OUT_OF_MEMORY`
        ("thread", "u4"),  # index into `EventReader.threads`
        ("device", "i4"),  # of a point, index into `EventReader.devices`
        ("bytes", "i8"),  # of a point, as the rest
        ("total", "i8"),  # −1 where the file does not say, as `reserved`
        ("reserved", "i8"),
        ("address", "u8"),
    ]
)
"""What is kept of an event that matters."""

Rows = npt.NDArray[Any]
Scalar = int | float | str | bool | None


_NOTHING: Final = msgspec.Raw(b"")


class Arguments(msgspec.Struct, gc=False):
    """The arguments of a "[memory]" event, and the one of a thread's name."""

    bytes: Scalar = msgspec.field(default=None, name="Bytes")
    address: Scalar = msgspec.field(default=None, name="Addr")
    total: Scalar = msgspec.field(default=None, name="Total Allocated")
    reserved: Scalar = msgspec.field(default=None, name="Total Reserved")
    device_type: Scalar = msgspec.field(default=None, name="Device Type")
    device_id: Scalar = msgspec.field(default=None, name="Device Id")
    name: msgspec.Raw = _NOTHING


class Event(msgspec.Struct, gc=False):
    """An entry of traceEvents; times are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: int | float = 0
    dur: int | float = 0
    args: Arguments | None = None


class _ExactTime(msgspec.Struct, gc=False):
    ts: Decimal = Decimal(0)


_EXACT_TIMES: Final = msgspec.json.Decoder(list[_ExactTime])

MAX_TIME_US: Final = 2.0**52
"""The year 2112. Sums of a time, a duration and a base stay within 63 bits of nanoseconds."""

MAX_DURATION_US: Final = 2.0**50

# Below, a double is nearer to the nanosecond that was written than to any other.
_EXACT_BELOW_US: Final = 2.0**43


def nanoseconds(values: list[int | float]) -> tuple[npt.NDArray[np.int64], bool]:
    """Microseconds as nanoseconds, and whether a double was too coarse for one of them.

    They are within `MAX_TIME_US`.
    """
    times = np.array(values)
    if times.dtype.kind == "i":
        return times.astype(np.int64) * 1_000, False
    whole = np.floor(times)
    exact = whole.astype(np.int64) * 1_000 + np.rint((times - whole) * 1_000).astype(np.int64)
    return exact, bool((np.abs(times) >= _EXACT_BELOW_US).any())


def exact_nanoseconds(array: bytes, places: list[int]) -> npt.NDArray[np.int64]:
    """The times of the events at these places of a JSON array, from their decimal digits.

    `nanoseconds` must have taken them: a Decimal of any size would be written out digit by digit.
    """
    times = _EXACT_TIMES.decode(array)
    return np.array([int((times[place].ts * 1_000).to_integral_value()) for place in places], np.int64)
