"""Sizes as people write them: 4096, 512KiB, 1.5 GiB."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes.

    Raises:
        ValueError: this is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is no size; write 4096, 512KiB or 1.5GiB")
    return round(float(match[1]) * _UNITS[match[2].lower()])
