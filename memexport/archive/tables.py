"""The growing tables of an archive: what is written of them, and how they are rebuilt around a loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from memexport.archive.codec import CodecError, encodable
from memexport.archive.v1 import archive_pb2 as pb
from memexport.model import Device, Tables

TableName = Literal["strings", "stacks", "devices"]
ID_COLUMNS: Final[Mapping[str, TableName]] = {
    "name": "strings",
    "module": "strings",
    "thread": "strings",
    "inputs": "strings",
    "stack": "stacks",
    "device": "devices",
}
"""The columns of an `EventBatch` that hold ids, and what the ids are positions in."""

LOST: Final = "(lost)"
"""What stands in a table for an entry whose record was damaged."""

# Keeps a record of strings small enough that damage to one costs little.
_MAX_TEXT_LENGTH: Final = 1 << 20
_MAX_ENTRIES: Final = 1 << 16
# No entry takes less than this in a file: a tag and a length, or two numbers of a stack node.
_LEAST_ENTRY_BYTES: Final = 2


class TableWriter:
    """What `tables` and `devices` have gained since it was last asked."""

    def __init__(self, tables: Tables, devices: list[Device]) -> None:
        self._tables = tables
        self._devices = devices
        self.string_count = 1
        self.stack_count = 1
        self.device_count = 0

    def growth(self) -> Iterator[pb.Tables]:
        """The messages to write, in order; none if nothing was gained."""
        # A stack refers to strings, so it is looked at first: what it refers to is there by then.
        stacks, devices = self._tables.stacks.since(self.stack_count), self._devices[self.device_count :]
        yield from self._strings()
        for first in range(0, len(stacks), _MAX_ENTRIES):
            nodes = stacks[first : first + _MAX_ENTRIES]
            parents, frames = zip(*nodes, strict=True)
            yield pb.Tables(first_stack=self.stack_count, stack_parents=parents, stack_frames=frames)
            self.stack_count += len(nodes)
        if devices:
            yield pb.Tables(first_device=self.device_count, devices=map(_encode_device, devices))
            self.device_count += len(devices)

    def _strings(self) -> Iterator[pb.Tables]:
        message = pb.Tables(first_string=self.string_count)
        length = 0
        for string in map(encodable, self._tables.strings.since(self.string_count)):
            if length + len(string) > _MAX_TEXT_LENGTH or len(message.strings) == _MAX_ENTRIES:
                yield message
                message, length = pb.Tables(first_string=self.string_count), 0
            message.strings.append(string)
            length += len(string)
            self.string_count += 1
        if message.strings:
            yield message


class TableReader:
    """Rebuilds tables. Growth that it has seen before, in an earlier pass over the file, changes nothing.

    Attributes:
        tables: as far as they are known.
        devices: likewise; the list given.
        lost_entries: how many of both are `LOST`.
    """

    def __init__(self, devices: list[Device]) -> None:
        self.tables = Tables()
        self._strings, self._stacks = self.tables.strings, self.tables.stacks
        self.devices = devices
        self.lost_entries = 0

    def add(self, growth: pb.Tables, lost_bytes: int) -> None:
        """Take what a record says; entries that are missing before it become `LOST`.

        Raises:
            CodecError: more entries are missing than `lost_bytes` of the file can have held, or a stack node
                is called by one that comes after it.
        """
        if growth.strings:
            self.pad("strings", growth.first_string, lost_bytes)
            for string in growth.strings[len(self._strings) - growth.first_string :]:
                self._strings.append(string)
        if growth.stack_parents:
            # The strings stand in a record of their own, and that may be the one that is lost.
            self.pad("strings", max(growth.stack_frames, default=0) + 1, lost_bytes)
            self.pad("stacks", growth.first_stack, lost_bytes)
            self._add_stacks(growth)
        if growth.devices:
            self.pad("devices", growth.first_device, lost_bytes)
            for device in growth.devices[len(self.devices) - growth.first_device :]:
                self.devices.append(_decode_device(device))

    def length(self, table: TableName) -> int:
        """How many ids a table has, its null included."""
        match table:
            case "strings":
                return len(self._strings)
            case "stacks":
                return len(self._stacks)
            case "devices":
                return len(self.devices)

    def pad(self, table: TableName, length: int, lost_bytes: int) -> None:
        """Make a table at least this long, with `LOST` entries.

        Raises:
            CodecError: `lost_bytes` of a file cannot have held as many.
        """
        missing = max(length - self.length(table), 0)
        if missing * _LEAST_ENTRY_BYTES > lost_bytes:
            raise CodecError(f"{missing} {table} are missing, but too little is lost to have held them")
        for _ in range(missing):
            self._append_lost(table)
        self.lost_entries += missing

    def _append_lost(self, table: TableName) -> None:
        match table:
            case "strings":
                self._strings.append(LOST)
            case "stacks":
                # One frame, of the null string: a name for it would take an id that the file gives away.
                self._stacks.append(0, 0)
            case "devices":
                self.devices.append(Device(LOST, len(self.devices)))

    def _add_stacks(self, growth: pb.Tables) -> None:
        if len(growth.stack_parents) != len(growth.stack_frames):
            raise CodecError("stack nodes without frames")
        new = slice(len(self._stacks) - growth.first_stack, None)
        for parent, frame in zip(growth.stack_parents[new], growth.stack_frames[new], strict=True):
            # A parent that is no older could make a stack without an end.
            if parent >= len(self._stacks):
                raise CodecError(f"stack node {len(self._stacks)} is called by one that comes after it")
            self._stacks.append(parent, frame)


def _encode_device(device: Device) -> pb.Device:
    return pb.Device(
        type=encodable(device.type),
        index=device.index,
        name=None if device.name is None else encodable(device.name),
        uuid=None if device.uuid is None else encodable(device.uuid),
        capacity_bytes=device.capacity_bytes,
    )


def _decode_device(device: pb.Device) -> Device:
    return Device(
        type=device.type,
        index=device.index if device.HasField("index") else None,
        name=device.name if device.HasField("name") else None,
        uuid=device.uuid if device.HasField("uuid") else None,
        capacity_bytes=device.capacity_bytes if device.HasField("capacity_bytes") else None,
    )
