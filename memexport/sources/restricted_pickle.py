"""Reads a pickle of dicts, tuples, strings and numbers without being able to do what a pickle asks for.

A pickle is a program for a stack machine, and Python's runs whatever it names. This machine knows only the
operations that the pickler uses for `dict`, `collections.defaultdict`, `tuple`, `str`, `int`, `float` and
`None`; it never imports, calls or looks up anything. Its memory is bound by the size of the data.

Operations: https://github.com/python/cpython/blob/3.13/Lib/pickletools.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

MAX_DICTS: Final = 64
MAX_MARKS: Final = 64
MAX_STACK: Final = 100_000
"""Far above what a pickler makes of the data this is for (it sets 1000 items of a dict at a time), and low
enough that a file of one-byte operations cannot fill the memory."""

MAX_INT_BYTES: Final = 16

Scalar = int | float | str | None
Value = Scalar | tuple[Scalar, ...] | dict[int | str, "Value"]


class PickleRefusedError(Exception):
    """The data asks for something that is not allowed, or is damaged.

    Attributes:
        position: the byte of the operation at fault.
        what: what is wrong with it.
    """

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"byte {position}: {what}")
        self.position = position
        self.what = what


def loads(data: bytes) -> dict[int | str, Value]:
    """The dict that the data describes; every `defaultdict` comes as a plain dict.

    Dicts have keys of type int and str only, and tuples hold no tuples or dicts. A dict may contain itself.

    Raises:
        PickleRefusedError: for anything else, whatever the data.
    """
    return _Machine(data).run()


class _Global:
    """What stands on the stack for a global: a name that nothing is ever looked up by."""

    def __init__(self, name: str) -> None:
        self.name = name


_DEFAULTDICT: Final = _Global("collections.defaultdict")
_INT: Final = _Global("builtins.int")
_GLOBALS: Final = {("collections", "defaultdict"): _DEFAULTDICT, ("builtins", "int"): _INT}
_SCALARS: Final = (str, int, float, type(None))


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        self._objects = 0
        self._dicts = 0

    def run(self) -> dict[int | str, Value]:
        self._begin()
        operations = _OPERATIONS
        data, end = self._data, len(self._data)
        while self._at < end:
            operation = self._at
            code = data[operation]
            self._at += 1
            if code == _STOP:
                return self._finish(operation)
            try:
                execute = operations[code]
            except KeyError:
                raise PickleRefusedError(operation, f"operation {_name(code)} is not allowed") from None
            try:
                execute(self)
            except (struct.error, IndexError):
                # Reading past the end, or from a stack with too little on it.
                raise PickleRefusedError(operation, f"{_name(code)} is cut or has too few operands") from None
            except _Refusal as refusal:
                raise PickleRefusedError(operation, str(refusal)) from None
            if len(self._stack) > MAX_STACK:
                raise PickleRefusedError(operation, "too many values at once")
        raise PickleRefusedError(end, "the data is cut: it ends without a STOP")

    def _begin(self) -> None:
        if len(self._data) < 2 or self._data[0] != _PROTO:
            raise PickleRefusedError(0, "is no pickle of protocol 2 or later")
        if not 2 <= self._data[1] <= 5:
            raise PickleRefusedError(1, f"pickle protocol {self._data[1]} is not known")
        self._at = 2

    def _finish(self, operation: int) -> dict[int | str, Value]:
        if self._at != len(self._data):
            raise PickleRefusedError(self._at, "more data after the end of the pickle")
        (*rest, result) = self._stack or [None]
        if rest or self._marks or not isinstance(result, dict):
            raise PickleRefusedError(operation, "does not end with one dict")
        return result

    # What an operation reads.

    def _bytes(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise _Refusal(f"the data is cut: {length} bytes announced, {len(self._data) - self._at} left")
        self._at += length
        return self._data[self._at - length : self._at]

    def _number(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return int(value)

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + 200)
        if end < 0:
            raise _Refusal("a name without an end")
        line = self._bytes(end - self._at)
        self._at += 1
        return _text(line)

    # What it does to the stack.

    def _push(self, value: object) -> None:
        self._objects += 1
        self._stack.append(value)

    def _pop(self) -> object:
        # Not below the last mark: what lies there belongs to an operation that has yet to come.
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise IndexError
        return self._stack.pop()

    def _pop_to_mark(self) -> list[object]:
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def mark(self) -> None:
        if len(self._marks) >= MAX_MARKS:
            raise _Refusal("too deeply nested")
        self._marks.append(len(self._stack))

    def frame(self) -> None:
        length = self._number(_U8)
        if length > len(self._data) - self._at:
            raise _Refusal(f"the data is cut: a frame of {length} bytes, {len(self._data) - self._at} left")

    def none(self) -> None:
        self._push(None)

    def integer(self, layout: struct.Struct) -> None:
        self._push(self._number(layout))

    def long(self, layout: struct.Struct) -> None:
        length = self._number(layout)
        if not 0 <= length <= MAX_INT_BYTES:
            raise _Refusal(f"an integer of {length} bytes")
        self._push(int.from_bytes(self._bytes(length), "little", signed=True))

    def float(self) -> None:
        (value,) = _F8.unpack_from(self._data, self._at)
        self._at += 8
        self._push(value)

    def string(self, layout: struct.Struct) -> None:
        self._push(_text(self._bytes(self._number(layout))))

    def tuple(self, length: int) -> None:
        self._push_tuple([self._pop() for _ in range(length)][::-1])

    def marked_tuple(self) -> None:
        self._push_tuple(self._pop_to_mark())

    def _push_tuple(self, values: list[object]) -> None:
        for value in values:
            if not isinstance(value, _SCALARS) and value is not _INT:
                raise _Refusal(f"a tuple with a {_kind(value)} in it")
        self._push(tuple(values))

    def dict(self) -> None:
        self._dicts += 1
        if self._dicts > MAX_DICTS:
            raise _Refusal("too many dicts")
        self._push({})

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._update([key, value])

    def set_items(self) -> None:
        self._update(self._pop_to_mark())

    def _update(self, items: list[object]) -> None:
        target = self._stack[-1]
        if (self._marks and len(self._stack) <= self._marks[-1]) or not isinstance(target, dict):
            raise _Refusal(f"items set in a {_kind(target)}")
        if len(items) % 2:
            raise _Refusal("a key without a value")
        keys, values = items[::2], items[1::2]
        for key in keys:
            # Exactly these types: the hash of nested tuples may take time without bound.
            if type(key) is not int and type(key) is not str:
                raise _Refusal(f"a {_kind(key)} as key of a dict")
        for value in values:
            if isinstance(value, _Global) or (type(value) is tuple and _INT in value):
                raise _Refusal("a global as a value")
        target.update(zip(keys, values, strict=True))

    def memoize(self) -> None:
        self._remember(len(self._memo))

    def put(self, layout: struct.Struct) -> None:
        self._remember(self._number(layout))

    def _remember(self, index: int) -> None:
        if index >= self._objects or index < 0:
            raise _Refusal(f"memo index {index} after {self._objects} values")
        self._memo[index] = self._stack[-1]

    def get(self, layout: struct.Struct) -> None:
        index = self._number(layout)
        if index not in self._memo:
            raise _Refusal(f"memo index {index} was never set")
        # Not counted as a new object: it must not make room in the memo.
        self._stack.append(self._memo[index])

    def named_global(self) -> None:
        module = self._line()
        self._push(_global(module, self._line()))

    def stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise _Refusal("a global whose name is not a string")
        self._push(_global(module, name))

    def reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if function is not _DEFAULTDICT:
            raise _Refusal(f"a call of a {_kind(function)}")
        if not isinstance(arguments, tuple) or arguments not in ((), (None,), (_INT,)):
            raise _Refusal("a defaultdict made from something else than int or nothing")
        self.dict()


class _Refusal(Exception):  # noqa: N818 - becomes a PickleRefusedError once the position is known
    pass


def _global(module: str, name: str) -> _Global:
    try:
        return _GLOBALS[module, name]
    except KeyError:
        raise _Refusal(
            f"names the global {f'{module}.{name}'[:100]!r}; such a pickle can run any code"
        ) from None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Refusal("a string that is not UTF-8") from None


def _kind(value: object) -> str:
    return value.name if isinstance(value, _Global) else type(value).__name__


def _name(code: int) -> str:
    import pickletools  # only needed for an error

    names = {ord(known.code): known.name for known in pickletools.opcodes}
    return names.get(code, f"0x{code:02x}")


_U1, _U2, _I4, _U4, _U8, _F8 = (struct.Struct(layout) for layout in ("<B", "<H", "<i", "<I", "<Q", ">d"))
_PROTO: Final = 0x80
_STOP: Final = ord(".")

_OPERATIONS: Final[dict[int, Callable[[_Machine], None]]] = {
    ord("("): _Machine.mark,
    0x95: _Machine.frame,
    ord("N"): _Machine.none,
    ord("K"): lambda m: m.integer(_U1),
    ord("M"): lambda m: m.integer(_U2),
    ord("J"): lambda m: m.integer(_I4),
    0x8A: lambda m: m.long(_U1),
    0x8B: lambda m: m.long(_I4),
    ord("G"): _Machine.float,
    0x8C: lambda m: m.string(_U1),
    ord("X"): lambda m: m.string(_U4),
    0x8D: lambda m: m.string(_U8),
    ord(")"): lambda m: m.tuple(0),
    0x85: lambda m: m.tuple(1),
    0x86: lambda m: m.tuple(2),
    0x87: lambda m: m.tuple(3),
    ord("t"): _Machine.marked_tuple,
    ord("}"): _Machine.dict,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    0x94: _Machine.memoize,
    ord("q"): lambda m: m.put(_U1),
    ord("r"): lambda m: m.put(_U4),
    ord("h"): lambda m: m.get(_U1),
    ord("j"): lambda m: m.get(_U4),
    ord("c"): _Machine.named_global,
    0x93: _Machine.stack_global,
    ord("R"): _Machine.reduce,
}
