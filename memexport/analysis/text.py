"""Numbers and strings from files as text for people."""

from __future__ import annotations

import datetime
from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MINUS: Final = "\N{MINUS SIGN}"

LONGEST_NAME: Final = 1_000
"""How many characters of a name from a file are shown; longer ones are cut in the middle."""


def printable(text: str, longest: int = LONGEST_NAME) -> str:
    """The text with every character that could steer a terminal or break a line written as an escape.

    Names in a file are whatever its writer chose: one with an escape sequence in it must not repaint the
    screen, one with a right-to-left override not turn a path around, one of megabytes not bury the rest.
    What is longer than `longest` characters loses its middle.
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}…{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def operator_label(name: str) -> str:
    """An operator as torch.profiler writes it: `aten.addmm.default` becomes `aten::addmm`."""
    parts = name.split(".")
    return "::".join(parts[:2]) if len(parts) == 3 and all(parts) else name


def human_bytes(count: int) -> str:
    """The count in the largest binary unit that keeps it at 1 or more: "3.14 MiB", "512 B"."""
    if abs(count) < 1024:
        return f"{count} B".replace("-", _MINUS)
    size, unit = abs(count) / 1024, 0
    # What would be rounded to 1024.00 belongs to the next unit.
    while size >= 1023.995 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{_MINUS if count < 0 else ''}{size:.2f} {_UNITS[unit]}"


def human_duration(duration_ns: int) -> str:
    """The duration in a unit that suits it: "350 ns", "12.3 ms", "4.5 s", "1:02:03"."""
    if duration_ns < 1_000:
        return f"{duration_ns} ns"
    if duration_ns < 1_000_000:
        return f"{duration_ns / 1e3:.1f} µs"
    if duration_ns < 1_000_000_000:
        return f"{duration_ns / 1e6:.1f} ms"
    if duration_ns < 60_000_000_000:
        return f"{duration_ns / 1e9:.1f} s"
    return str(datetime.timedelta(seconds=duration_ns // 1_000_000_000))


def human_time(time_unix_ns: int) -> str:
    """The moment in UTC to the millisecond, "2026-02-03 04:05:06.789 UTC"; the number if no year has it."""
    seconds, rest_ns = divmod(time_unix_ns, 1_000_000_000)
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return f"{time_unix_ns} ns"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000_000:03d} UTC"
