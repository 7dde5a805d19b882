"""What trace_processor.wasm needs of an operating system."""

from __future__ import annotations

import calendar
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import wasmtime

_PAGE_BYTES: Final = 65_536
_LAST_PAGE: Final = 65_536
_ENOENT: Final = 44  # WASI's numbers
_ENOSYS: Final = 52


class TraceProcessorError(Exception):
    """What trace_processor says is wrong."""


class Host:
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
        import wasmtime

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
