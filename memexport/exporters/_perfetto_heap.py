"""The flamegraph of what lived at a peak, as a native heap profile.

https://perfetto.dev/docs/data-sources/native-heap-profiler
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from memexport.exporters._flamegraph import Stack
from memexport.exporters._perfetto_interning import protobuf_text

_CLEARED_AND_NEEDED: Final = 3
_MODULE_MAPPING: Final = "module"
_BUILD_ID: Final = 1


class _Interned:
    """Numbers entries of one kind from 1, each once."""

    def __init__(self, write: Callable[[int, Any], None]) -> None:
        self._write = write
        self._iids: dict[Any, int] = {}

    def iid(self, key: Any) -> int:
        found = self._iids.get(key)
        if found is None:
            found = self._iids[key] = len(self._iids) + 1
            self._write(found, key)
        return found


class HeapProfile:
    """One heap dump: the stacks of one device of one process.

    Modules share a mapping; the last frame's mapping is its category, which the UI shows beside the name.
    """

    def __init__(self, sequence_id: int) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        self._trace = Trace()
        packet = self._packet = self._trace.packet.add(trusted_packet_sequence_id=sequence_id)
        packet.sequence_flags = _CLEARED_AND_NEEDED
        interned = packet.interned_data
        interned.build_ids.add(iid=_BUILD_ID, str=b"memexport")
        self._functions = _Interned(lambda iid, text: interned.function_names.add(iid=iid, str=_utf8(text)))
        self._paths = _Interned(lambda iid, text: interned.mapping_paths.add(iid=iid, str=_utf8(text)))
        self._mappings = _Interned(self._write_mapping)
        self._frames = _Interned(self._write_frame)
        self._callstacks = _Interned(
            lambda iid, frames: interned.callstacks.add(iid=iid, frame_ids=list(frames))
        )

    def encode(self, stacks: Iterable[Stack], pid: int, heap_name: str, time_ns: int) -> bytes:
        """The packet; a process with this pid must have been described."""
        self._packet.timestamp = time_ns
        dump = self._packet.profile_packet.process_dumps.add(pid=pid, heap_name=heap_name, timestamp=time_ns)
        for stack in stacks:
            dump.samples.add(
                callstack_id=self._callstacks.iid(self._frame_ids(stack)),
                self_allocated=stack.bytes,
                alloc_count=stack.count,
            )
        encoded: bytes = self._trace.SerializeToString()
        return encoded

    def _frame_ids(self, stack: Stack) -> tuple[int, ...]:
        modules = (self._frames.iid((name, _MODULE_MAPPING)) for name in stack.frames[:-1])
        return (*modules, self._frames.iid((stack.frames[-1], stack.category)))

    def _write_mapping(self, iid: int, path: str) -> None:
        self._packet.interned_data.mappings.add(
            iid=iid, build_id=_BUILD_ID, path_string_ids=[self._paths.iid(path)]
        )

    def _write_frame(self, iid: int, frame: tuple[str, str]) -> None:
        name, mapping = frame
        self._packet.interned_data.frames.add(
            iid=iid,
            function_name_id=self._functions.iid(name),
            mapping_id=self._mappings.iid(mapping),
            rel_pc=iid,  # frames of one mapping and address would be taken for one
        )


def _utf8(text: str) -> bytes:
    return protobuf_text(text).encode()
