"""What a trace says of itself, around its events."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from memexport.model import Device, RecordingInfo

_OPTIONS: Final = ("with_stack", "with_flops", "with_modules", "record_shapes", "profile_memory")
_NOTHING: Final = msgspec.Raw(b"")
_MAX_BASE_NS: Final = 2**61


class _Properties(msgspec.Struct, gc=False):
    """A GPU."""

    id: int
    name: str | None = None
    memory: int | None = msgspec.field(default=None, name="totalGlobalMem")


class _Distributed(msgspec.Struct, gc=False):
    """Where the process stands among others."""

    rank: int | None = None
    world_size: int | None = None


class _Members(msgspec.Struct, gc=False):
    """The members of the trace's object; each is decoded by itself, so that one can be wrong."""

    deviceProperties: msgspec.Raw = _NOTHING  # noqa: N815 - as in the file, like the others
    distributedInfo: msgspec.Raw = _NOTHING  # noqa: N815
    baseTimeNanoseconds: msgspec.Raw = _NOTHING  # noqa: N815
    host_name: msgspec.Raw = _NOTHING
    with_stack: msgspec.Raw = _NOTHING
    with_flops: msgspec.Raw = _NOTHING
    with_modules: msgspec.Raw = _NOTHING
    record_shapes: msgspec.Raw = _NOTHING
    profile_memory: msgspec.Raw = _NOTHING


class About:
    """The members of a trace's object, from before and after its events.

    Attributes:
        is_readable: whether both were JSON.
        base_ns: what to add to every time; None where it is not said.
    """

    def __init__(self, before: bytes, after: bytes) -> None:
        self.is_readable = True
        self._members = [members for text in (after, before) if (members := self._decode(text))]
        base_ns = self._value("baseTimeNanoseconds", int)
        self.base_ns = base_ns if base_ns is not None and abs(base_ns) <= _MAX_BASE_NS else None

    @property
    def memory_was_profiled(self) -> bool:
        """Whether it says that it was recorded with `profile_memory=True`."""
        return bool(self._value("profile_memory", int) == 1)

    def info(self, devices: list[Device], start_time_unix_ns: int, pid: int | None) -> RecordingInfo:
        """What is true for the whole recording."""
        distributed = self._value("distributedInfo", _Distributed) or _Distributed()
        options = {name: self._value(name, int) for name in _OPTIONS}
        return RecordingInfo(
            format="kineto",
            producer="torch.profiler",
            start_time_unix_ns=start_time_unix_ns,
            host=self._value("host_name", str),
            pid=pid,
            rank=_count(distributed.rank),
            world_size=_count(distributed.world_size),
            devices=devices,
            options={name: str(value) for name, value in options.items() if value is not None},
        )

    def device(self, kind: str, index: int | None) -> Device:
        """The device, with what its vendor says of it if it is a GPU of this machine."""
        for properties in self._value("deviceProperties", list[_Properties]) or ():
            if kind in ("cuda", "hip", "xpu") and properties.id == index:
                return Device(kind, index, properties.name, capacity_bytes=_count(properties.memory))
        return Device(kind, index)

    def _decode(self, text: bytes) -> _Members | None:
        try:
            return msgspec.json.decode(text, type=_Members)
        except (ValueError, RecursionError):
            self.is_readable = False
            return None

    def _value(self, name: str, kind: Any) -> Any:
        """The member as this type; None if there is none, or one of another type."""
        for members in self._members:
            raw = getattr(members, name)
            if bytes(raw):
                try:
                    return msgspec.json.decode(raw, type=kind)
                except (ValueError, RecursionError):
                    return None
        return None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < 2**63 else None
