"""What `PYTORCH_ALLOC_CONF` changes about a caching allocator, and its constants.

Those of torch 2.13: `c10/core/AllocatorConfig.h`, where the names in the comments stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MIN_BLOCK: Final = 512  # kMinBlockSize
SMALL: Final = 1 << 20  # kSmallSize
"""The largest request that is served from a small segment."""
SMALL_SEGMENT: Final = 2 << 20  # kSmallBuffer
OWN_SEGMENT: Final = 10 << 20  # kMinLargeAlloc
"""From here on a request has a segment of its own size."""
SEGMENT_UNIT: Final = 2 << 20  # kRoundLarge
UNLIMITED: Final = 1 << 62

_INTERVALS: Final = 16
_FIRST_INTERVAL: Final = 20
"""`roundup_power2_divisions` has a value for sizes from 1 MiB (2²⁰), 2 MiB, … up to 32 GiB."""


@dataclass(frozen=True)
class AllocatorSettings:
    """What `PYTORCH_ALLOC_CONF` may change.

    Attributes:
        roundup_power2_divisions: into how many parts a power of two is divided, by interval (up to 2 MiB,
            4 MiB, …); 0 or 1: none, round to 512 bytes.
        max_split_size: larger blocks are not split.
        max_non_split_rounding: how much larger than a request beyond `max_split_size` a block may be.
        large_segment: the size of a segment for requests below 10 MiB.
        ignored: the names of settings that are not simulated.
    """

    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = 20 << 20
    large_segment: int = 20 << 20
    ignored: tuple[str, ...] = ()

    def rounded(self, size: int) -> int:
        """The size of the block that a request of this size asks for."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        interval = min(max(size.bit_length() - 1 - _FIRST_INTERVAL, 0), _INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            part = (1 << (size.bit_length() - 1)) // divisions
            return -(-size // part) * part
        return -(-size // MIN_BLOCK) * MIN_BLOCK

    def segment_for(self, block: int) -> int:
        """The size of the segment that is reserved for a block of this size."""
        if block <= SMALL:
            return SMALL_SEGMENT
        if block < OWN_SEGMENT:
            return self.large_segment
        return -(-block // SEGMENT_UNIT) * SEGMENT_UNIT


def parse_settings(text: str) -> AllocatorSettings:
    """The settings in a `PYTORCH_ALLOC_CONF`: "max_split_size_mb:128,roundup_power2_divisions:[256:2,>:4]".

    What is not simulated or not understood is named in `ignored`.
    """
    values: dict[str, int | tuple[int, ...]] = {}
    ignored = []
    for name, value in _pairs(text):
        try:
            known = _SETTINGS[name]
        except KeyError:
            if value.lower() != "false":
                ignored.append(name)
            continue
        try:
            values[known[0]] = known[1](value)
        except ValueError:
            ignored.append(name)
    return AllocatorSettings(**values, ignored=tuple(ignored))  # type: ignore[arg-type]  # see _SETTINGS


def _pairs(text: str) -> list[tuple[str, str]]:
    """Names and values; a list in brackets has commas of its own."""
    parts, depth = [""], 0
    for character in text.replace(" ", ""):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [(name, value) for name, _, value in (part.partition(":") for part in parts) if name]


def _mebibytes(value: str) -> int:
    return int(value) << 20


def _divisions(value: str) -> tuple[int, ...]:
    """One number for all sizes, or [256:1,512:2,>:4]: up to 256 MiB, 512 MiB, above."""
    if not value.startswith("["):
        return (int(value),) * _INTERVALS
    table = [0] * _INTERVALS
    last = 0
    for position, (boundary, divisions) in enumerate(_pairs(value.strip("[]"))):
        if boundary == ">":
            table[last + 1 :] = [int(divisions)] * (_INTERVALS - last - 1)
            continue
        last = min(int(boundary).bit_length() - 1, _INTERVALS - 1)
        if position == 0:
            table[:last] = [int(divisions)] * last
        table[last] = int(divisions)
    return tuple(table)


_SETTINGS: Final[dict[str, tuple[str, Callable[[str], int | tuple[int, ...]]]]] = {
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "max_split_size_mb": ("max_split_size", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _mebibytes),
    "large_segment_size_mb": ("large_segment", _mebibytes),
}
"""By their names there, the attribute and how its value is read."""
