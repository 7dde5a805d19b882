"""`memexport info`: what a recording says of itself."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memexport.analysis.text import human_bytes, human_time, printable
from memexport.cli.files import InputFile
from memexport.cli.inputs import expanded, for_each, opened
from memexport.cli.terminal import Answers

if TYPE_CHECKING:
    from memexport.model import Device, RecordingInfo


@click.command("info")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=InputFile(), callback=expanded)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, of several INPUTs an array.")
def command(inputs: tuple[str, ...], as_json: bool) -> None:
    """Say where the recordings INPUT come from: program, machine, devices, versions.

    An INPUT may be a URL, or - for stdin.
    """
    answers = Answers(as_json=as_json, several=len(inputs) > 1)

    def tell(name: str) -> None:
        with opened(name) as recording:
            info = recording.info
            if not info.devices:
                # Devices come with the events that first speak of them.
                next(recording.batches(), None)
            size_bytes = recording.path.stat().st_size
        answers.add(name, partial(_fields, info, size_bytes), partial(_text, info, size_bytes))

    exit_code = for_each(inputs, tell)
    answers.finish()
    sys.exit(exit_code)


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
