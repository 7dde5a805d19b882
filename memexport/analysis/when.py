"""Places in a recording as people write them: an event's index, a time after the start, a time of day."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from memexport.errors import UsageError

NOTATION: Final = "an event's index (1000 or #1000), a time after the start (12.5s, 300ms), or a time in UTC"

_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3_600 * 10**9,
}
_INDEX: Final = re.compile(r"#?(\d+)", re.ASCII)
_AFTER_START: Final = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_NS)})", re.ASCII)
_UNIX: Final = re.compile(r"@(\d+(?:\.\d+)?)", re.ASCII)
_ISO: Final = re.compile(r"(\d{4}-[^.]*?)(\.\d+)?( UTC|Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_GREATEST: Final = 2**62
_LONGEST: Final = 100


@dataclass(frozen=True)
class When:
    """A place in a recording.

    Attributes:
        unit: what `value` is: "event": the index of an event, from 0. "after start": nanoseconds after the
            recording's start. "unix": Unix nanoseconds.
    """

    unit: Literal["event", "after start", "unix"]
    value: int


def parse_when(when: int | str) -> When:
    """What is meant by an event's index or by text.

    Text is an index, "1000" or "#1000"; a time after the recording's start in ns, us, ms, s, min or h,
    "12.5s"; Unix seconds, "@1795267569.5"; or a date and time in ISO 8601, "2026-11-21T13:00:00Z", in UTC
    where it names no zone. Times are exact to the nanosecond.

    Raises:
        UsageError: it is none of these.
    """
    text = str(when).strip()
    parsed = _parse(text) if len(text) <= _LONGEST else None
    if parsed is None or abs(parsed.value) > _GREATEST:
        raise UsageError(f"{text[:_LONGEST]!r} is no place in a recording", hint=f"write {NOTATION}")
    return parsed


def _parse(text: str) -> When | None:
    if match := _INDEX.fullmatch(text):
        return When("event", int(match[1]))
    if match := _AFTER_START.fullmatch(text):
        return When("after start", int(Decimal(match[1]) * _NS[match[2]]))
    if match := _UNIX.fullmatch(text):
        return When("unix", int(Decimal(match[1]) * _NS["s"]))
    if match := _ISO.fullmatch(text):
        return _iso(*match.groups(""))
    return None


def _iso(whole: str, fraction: str, zone: str) -> When | None:
    try:
        moment = datetime.datetime.fromisoformat(whole + (zone if zone != " UTC" else "Z"))
    except ValueError:
        return None
    # A datetime holds microseconds only, so the fraction is added here.
    seconds = round((moment.replace(tzinfo=moment.tzinfo or datetime.UTC) - _EPOCH).total_seconds())
    return When("unix", seconds * _NS["s"] + int(Decimal(f"0{fraction}") * _NS["s"]))
