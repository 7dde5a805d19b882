"""What a recording says of itself, as names and values for a trace's metadata."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from memexport.model import RecordingEnd, RecordingInfo

Facts = Mapping[str, str | int | None]


def about_recording(info: RecordingInfo, origin_unix_ns: int) -> Facts:
    """What is known at the start; None is left out of the trace."""
    has_clock = info.clock == "unix"
    return {
        "producer": " ".join(part for part in (info.producer, info.producer_version) if part) or None,
        "source_format": info.format,
        "schema_version": info.schema_version,
        "torch_version": info.torch_version,
        "python_version": info.python_version,
        "command_line": shlex.join(info.command_line) or None,
        "host": info.host,
        "pid": info.pid,
        "rank": info.rank,
        "world_size": info.world_size,
        "clock": info.clock if has_clock else "index: times count events and measure nothing",
        "time_zero_unix_ns": origin_unix_ns if has_clock else None,
        "time_zero_utc": _utc(origin_unix_ns) if has_clock else None,
        **{f"device {device}": _device_facts(device) for device in info.devices},
        **{f"option {name}": value for name, value in info.options.items()},
    }


def about_end(end: RecordingEnd, clipped_values: int, clipped_events: int) -> Facts:
    """What is known at the end, with what this trace cannot show; None is left out of the trace."""
    warnings = list(end.warnings)
    if clipped_values:
        warnings.append(f"{clipped_values} counter values above 2^53 are drawn as 2^53: traces keep doubles")
    if clipped_events:
        warnings.append(f"{clipped_events} events lie before the recording's start and are drawn at it")
    return {
        **{f"warning {number}": warning for number, warning in enumerate(warnings, 1)},
        "dropped_events": end.dropped_events,
        "alloc_retries": end.alloc_retries,
        "ooms": end.ooms,
    }


def _utc(time_unix_ns: int) -> str:
    seconds, nanoseconds = divmod(time_unix_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"


def _device_facts(device: Any) -> str:
    capacity = f"{device.capacity_bytes} bytes" if device.capacity_bytes is not None else None
    return ", ".join(part for part in (device.name, device.uuid, capacity) if part) or "no details"
