"""`memexport info`: what a recording says of itself."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memexport.analysis.text import human_bytes, human_time, printable
from memexport.cli.terminal import answer

if TYPE_CHECKING:
    from memexport.model import Device, RecordingInfo


@click.command("info")
@click.argument("recording", metavar="INPUT", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(recording: Path, as_json: bool) -> None:
    """Say where the recording INPUT comes from: program, machine, devices, versions."""
    from memexport import pipeline

    with pipeline.open(recording) as opened:
        info = opened.info
        if not info.devices:
            # Devices come with the events that first speak of them.
            next(opened.batches(), None)
    size_bytes = recording.stat().st_size
    answer(json.dumps(_fields(info, size_bytes), indent=2) if as_json else _text(info, size_bytes))


def _fields(info: RecordingInfo, size_bytes: int) -> dict[str, Any]:
    fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    del fields["unknown_fields"]
    fields["devices"] = [dataclasses.asdict(device) for device in info.devices]
    fields["options"] = dict(info.options)
    return {**fields, "file_bytes": size_bytes}


def _text(info: RecordingInfo, size_bytes: int) -> str:
    start = info.start_time_unix_ns
    rows = {
        "format": f"{info.format} {info.schema_version}",
        "size": human_bytes(size_bytes),
        "recorded by": _joined(info.producer, info.producer_version),
        "started": None if start is None else human_time(start),
        "clock": "none: times count events" if info.clock == "index" else "Unix time",
        "host": _joined(info.host, None if info.pid is None else f"process {info.pid}"),
        "rank": None if info.rank is None else _rank(info),
        "torch": info.torch_version,
        "Python": info.python_version,
        "command": shlex.join(info.command_line) or None,
        **{f"option {name}": value for name, value in info.options.items()},
        **{f"device {index}": _device(device) for index, device in enumerate(info.devices)},
    }
    width = max(len(name) for name in rows)
    return "\n".join(
        printable(f"{name:<{width}}  {value}") for name, value in rows.items() if value is not None
    )


def _rank(info: RecordingInfo) -> str:
    of = "" if info.world_size is None else f" of {info.world_size}"
    return f"{info.rank}{of}" + ("" if info.local_rank is None else f", local rank {info.local_rank}")


def _device(device: Device) -> str:
    capacity = None if device.capacity_bytes is None else human_bytes(device.capacity_bytes)
    return ", ".join(part for part in (str(device), device.name, capacity, device.uuid) if part)


def _joined(*parts: str | None) -> str | None:
    return ", ".join(part for part in parts if part) or None
