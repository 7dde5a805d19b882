"""The flamegraph of what lived at a peak, as a native heap profile.

https://perfetto.dev/docs/data-sources/native-heap-profiler
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from memexport.exporters._flamegraph import Stack
from memexport.exporters._frames import Frame
from memexport.exporters._perfetto_interning import protobuf_text

_CLEARED_AND_NEEDED: Final = 3
_NEEDED: Final = 2
_OUTER_MAPPING: Final = "module"
_BUILD_ID_IID: Final = 1
_BUILD_ID: Final = "memexport"


class HeapProfile:
    """The heap dumps of one device of one process, in the order of their times.

    Outer frames share a mapping; the last frame's mapping is its category, which the UI shows beside the
    name. Where a frame's code is known, a symbol says so.
    """

    def __init__(self, sequence_id: int, pid: int, heap_name: str) -> None:
        """A process with this pid must be described in the trace."""
        self._sequence_id = sequence_id
        self._pid = pid
        self._heap_name = heap_name
        self._vocabulary = _Vocabulary()
        self._dumps = 0
        self._sums: dict[int, _Sums] = {}

    def encode(self, stacks: Iterable[Stack], time_ns: int) -> bytes:
        """The packets of one dump."""
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        live = {self._vocabulary.callstack(stack): stack for stack in stacks}
        trace = Trace()
        packet = trace.packet.add(trusted_packet_sequence_id=self._sequence_id, timestamp=time_ns)
        packet.sequence_flags = _NEEDED if self._dumps else _CLEARED_AND_NEEDED
        packet.profile_packet.index = self._dumps
        self._dumps += 1
        self._vocabulary.write_new(packet.interned_data)
        dump = packet.profile_packet.process_dumps.add(
            pid=self._pid, heap_name=self._heap_name, timestamp=time_ns
        )
        for callstack, sums in self._sums_of(live).items():
            dump.samples.add(callstack_id=callstack, **sums.fields())
        for symbols in self._vocabulary.new_symbols():
            trace.packet.add(trusted_packet_sequence_id=self._sequence_id, module_symbols=symbols)
        encoded: bytes = trace.SerializeToString()
        return encoded

    def _sums_of(self, live: dict[int, Stack]) -> dict[int, _Sums]:
        """What each callstack ever allocated and freed: the UI subtracts, dump by dump."""
        for callstack in live.keys() - self._sums.keys():
            self._sums[callstack] = _Sums()
        changed = False
        for callstack, sums in self._sums.items():
            stack = live.get(callstack)
            changed |= sums.become(stack.bytes if stack else 0, stack.count if stack else 0)
        if not changed:
            # The importer forgets a dump that is the same as the one before; one step is like another.
            largest = max(live, key=lambda callstack: live[callstack].bytes)
            self._sums[largest].become(0, 0)
            self._sums[largest].become(live[largest].bytes, live[largest].count)
        return self._sums


class _Sums:
    def __init__(self) -> None:
        self._allocated = self._freed = self._allocations = self._frees = 0

    def become(self, live_bytes: int, live_count: int) -> bool:
        """Allocate or free what is missing to this; whether anything was."""
        before = (self._allocated, self._freed, self._allocations, self._frees)
        more = live_bytes - (self._allocated - self._freed)
        self._allocated += max(0, more)
        self._freed += max(0, -more)
        more = live_count - (self._allocations - self._frees)
        self._allocations += max(0, more)
        self._frees += max(0, -more)
        return before != (self._allocated, self._freed, self._allocations, self._frees)

    def fields(self) -> dict[str, int]:
        return {
            "self_allocated": self._allocated,
            "self_freed": self._freed,
            "alloc_count": self._allocations,
            "free_count": self._frees,
        }


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


class _Vocabulary:
    """Frames, mappings and callstacks, and what of them was not yet written."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import InternedData, ModuleSymbols

        self._new = InternedData()
        self._new.build_ids.add(iid=_BUILD_ID_IID, str=_BUILD_ID.encode())
        self._new_symbols: dict[str, Any] = {}
        self._make_symbols = ModuleSymbols
        self._functions = _Interned(lambda iid, text: self._new.function_names.add(iid=iid, str=_utf8(text)))
        self._paths = _Interned(lambda iid, text: self._new.mapping_paths.add(iid=iid, str=_utf8(text)))
        self._mappings = _Interned(self._add_mapping)
        self._frames = _Interned(self._add_frame)
        self._callstacks = _Interned(
            lambda iid, frames: self._new.callstacks.add(iid=iid, frame_ids=list(frames))
        )

    def callstack(self, stack: Stack) -> int:
        """The number of the stack's frames and category."""
        outer = (self._frames.iid((frame, _OUTER_MAPPING)) for frame in stack.frames[:-1])
        return self._callstacks.iid((*outer, self._frames.iid((stack.frames[-1], stack.category))))

    def write_new(self, interned_data: Any) -> None:
        """Put what was numbered since the last call into an InternedData message."""
        interned_data.CopyFrom(self._new)
        self._new.Clear()

    def new_symbols(self) -> list[Any]:
        """Where the code of the new frames is, one message for each mapping."""
        symbols = list(self._new_symbols.values())
        self._new_symbols.clear()
        return symbols

    def _add_mapping(self, iid: int, path: str) -> None:
        self._new.mappings.add(iid=iid, build_id=_BUILD_ID_IID, path_string_ids=[self._paths.iid(path)])

    def _add_frame(self, iid: int, key: tuple[Frame, str]) -> None:
        frame, mapping = key
        # Frames of one mapping and address would be taken for one.
        self._new.frames.add(
            iid=iid,
            function_name_id=self._functions.iid(frame.name),
            mapping_id=self._mappings.iid(mapping),
            rel_pc=iid,
        )
        if frame.line:
            self._add_symbol(iid, frame, mapping)

    def _add_symbol(self, address: int, frame: Frame, mapping: str) -> None:
        if mapping not in self._new_symbols:
            # The importer puts a slash before a mapping's path.
            self._new_symbols[mapping] = self._make_symbols(path=f"/{mapping}", build_id=_BUILD_ID)
        self._new_symbols[mapping].address_symbols.add(address=address).lines.add(
            function_name=protobuf_text(frame.name),
            source_file_name=protobuf_text(frame.file),
            line_number=frame.line,
        )


def _utf8(text: str) -> bytes:
    return protobuf_text(text).encode()
