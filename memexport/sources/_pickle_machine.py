"""A stack machine for pickles that cannot do what a pickle asks for.

A pickle is a program for a stack machine, and Python's runs whatever it names. This machine knows only the
operations that make `dict`, `collections.defaultdict` (as a dict), `tuple`, `str`, `int`, `float` and `None`;
it never imports, calls or looks up anything. What else a format needs, and what it limits, a subclass says.

Operations: https://github.com/python/cpython/blob/3.13/Lib/pickletools.py
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from memexport.sources._pickle_window import Window

MAX_MARKS: Final = 64
MAX_STACK: Final = 100_000
"""Far above what a pickler makes of the data this is for (it sets 1000 items of a dict at a time), and low
enough that a file of one-byte operations cannot fill the memory."""

MAX_INT_BYTES: Final = 16

_LONGEST_OPERATION: Final = 16
"""At least the bytes of an operation with its operand, strings and long integers aside."""


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


class Refusal(Exception):  # noqa: N818 - becomes a PickleRefusedError once the position is known
    """An operation that is not allowed here; says why."""


class Global:
    """What stands on the stack for a global: a name that nothing is ever looked up by."""

    def __init__(self, name: str) -> None:
        self.name = name


DEFAULTDICT: Final = Global("collections.defaultdict")
INT: Final = Global("builtins.int")
_GLOBALS: Final = {("collections", "defaultdict"): DEFAULTDICT, ("builtins", "int"): INT}

Operation = Callable[[Any], None]


class Machine(ABC):
    """Runs a pickle of protocol 2 to 5 and gives what is left on the stack at its end.

    A subclass sets `operations`, and keeps the memo.
    """

    operations: ClassVar[Sequence[Operation]]
    """What each of the 256 codes does."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.objects = 0

    def run(self) -> Any:
        """The one value that the pickle describes.

        Raises:
            PickleRefusedError: for anything that is not allowed, whatever the data.
        """
        self._begin()
        operations, window, stack = self.operations, self.window, self.stack
        while True:
            if len(window.data) - window.at < _LONGEST_OPERATION:
                window.refill(_LONGEST_OPERATION)
            begin = window.base + window.at
            code = -1
            try:
                code = window.data[window.at]
                window.at += 1
                if code == _STOP:
                    return self._finish(window.position(begin))
                operations[code](self)
                if len(stack) > MAX_STACK:
                    raise Refusal("too many values at once")
            except Refusal as refusal:
                raise PickleRefusedError(window.position(begin), str(refusal)) from None
            except (struct.error, IndexError):
                # Reading past the end, or from a stack with too little on it.
                raise PickleRefusedError(window.position(begin), _cut(code)) from None

    def _begin(self) -> None:
        data = self.window.data
        if len(data) < 2 or data[0] != _PROTO:
            raise PickleRefusedError(0, "is no pickle of protocol 2 or later")
        if not 2 <= data[1] <= 5:
            raise PickleRefusedError(1, f"pickle protocol {data[1]} is not known")
        self.window.at = 2

    def _finish(self, position: int) -> Any:
        if self.window.left:
            raise PickleRefusedError(position + 1, "more data after the end of the pickle")
        if len(self.stack) != 1 or self.marks:
            raise PickleRefusedError(position, "does not end with one value")
        return self.stack[0]

    # What an operation reads.

    def _bytes(self, length: int) -> bytes:
        if length > self.window.left:
            raise Refusal(f"the data is cut: {length} bytes announced, {self.window.left} left")
        return self.window.take(length)

    def number(self, layout: struct.Struct) -> int:
        """The operand, a number of fixed length."""
        window = self.window
        (value,) = layout.unpack_from(window.data, window.at)
        window.at += layout.size
        return value  # type: ignore[no-any-return]  # what unpack gives depends on the layout

    def _line(self) -> str:
        self.window.refill(_LONGEST_LINE)
        end = self.window.data.find(b"\n", self.window.at, self.window.at + _LONGEST_LINE)
        if end < 0:
            raise Refusal("a name without an end")
        line = self._bytes(end - self.window.at)
        self.window.at += 1
        return self.text(line)

    def text(self, data: bytes) -> str:
        """The string that a pickle writes as these bytes."""
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Refusal("a string that is not UTF-8") from None

    # What it does to the stack.

    def push(self, value: object) -> None:
        """Put a new object onto the stack."""
        self.objects += 1
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the topmost value, not below the last mark: that belongs to an operation yet to come."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        """Take the values above the last mark, and the mark."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def top(self) -> Any:
        """The topmost value, which must lie above the last mark."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError
        return self.stack[-1]

    def mark(self) -> None:
        """MARK."""
        if len(self.marks) >= MAX_MARKS:
            raise Refusal("too deeply nested")
        self.marks.append(len(self.stack))

    def frame(self) -> None:
        """FRAME: only an announcement."""
        length = self.number(U8)
        if length > self.window.left:
            raise Refusal(f"the data is cut: a frame of {length} bytes, {self.window.left} left")
        self.window.framed(length)

    def none(self) -> None:
        """NONE."""
        self.push(None)

    def integer(self, layout: struct.Struct) -> None:
        """BININT and its kind."""
        self.push(self.number(layout))

    def long(self, layout: struct.Struct) -> None:
        """LONG1 and LONG4."""
        length = self.number(layout)
        if not 0 <= length <= MAX_INT_BYTES:
            raise Refusal(f"an integer of {length} bytes")
        self.push(int.from_bytes(self._bytes(length), "little", signed=True))

    def string(self, layout: struct.Struct) -> None:
        """BINUNICODE and its kind."""
        self.push(self.text(self._bytes(self.number(layout))))

    def make_tuple(self, length: int) -> None:
        """EMPTY_TUPLE to TUPLE3."""
        self.push_tuple([self.pop() for _ in range(length)][::-1])

    def marked_tuple(self) -> None:
        """TUPLE."""
        self.push_tuple(self.pop_to_mark())

    def push_tuple(self, values: list[Any]) -> None:
        """Put a new tuple onto the stack."""
        self.push(tuple(values))

    @abstractmethod
    def make_dict(self) -> None:
        """EMPTY_DICT."""

    def set_item(self) -> None:
        """SETITEM."""
        value, key = self.pop(), self.pop()
        self._set([key, value])

    def set_items(self) -> None:
        """SETITEMS."""
        self._set(self.pop_to_mark())

    def _set(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict):
            raise Refusal(f"items set in a {kind(target)}")
        if len(items) % 2:
            raise Refusal("a key without a value")
        self._check(items[::2], items[1::2])
        self.update(target, items[::2], items[1::2])

    def _check(self, keys: list[Any], values: list[Any]) -> None:
        for key in keys:
            # Exactly these types: the hash of nested tuples may take time without bound.
            if type(key) is not int and type(key) is not str:
                raise Refusal(f"a {kind(key)} as key of a dict")
        for value in values:
            if isinstance(value, Global) or (type(value) is tuple and INT in value):
                raise Refusal("a global as a value")

    def update(self, target: Any, keys: list[Any], values: list[Any]) -> None:
        """Set items of the dict."""
        target.update(zip(keys, values, strict=True))

    @abstractmethod
    def memoize(self) -> None:
        """MEMOIZE."""

    def put(self, layout: struct.Struct) -> None:
        """BINPUT and LONG_BINPUT."""
        self.remember(self.number(layout))

    @abstractmethod
    def remember(self, index: int) -> None:
        """Keep the topmost value in the memo. A memo never has more entries than there were objects."""

    def get(self, layout: struct.Struct) -> None:
        """BINGET and LONG_BINGET. Not counted as a new object: it must not make room in the memo."""
        self.stack.append(self.recall(self.number(layout)))

    @abstractmethod
    def recall(self, index: int) -> object:
        """What the memo holds."""

    def named_global(self) -> None:
        """GLOBAL."""
        module = self._line()
        self.push(_global(module, self._line()))

    def stack_global(self) -> None:
        """STACK_GLOBAL."""
        name, module = self.pop(), self.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refusal("a global whose name is not a string")
        self.push(_global(module, name))

    def reduce(self) -> None:
        """REDUCE: a call, in general; here, the making of an empty dict."""
        arguments, function = self.pop(), self.pop()
        if function is not DEFAULTDICT:
            raise Refusal(f"a call of a {kind(function)}")
        if type(arguments) is not tuple or arguments not in ((), (None,), (INT,)):
            raise Refusal("a defaultdict made from something else than int or nothing")
        self.make_dict()


def _global(module: str, name: str) -> Global:
    try:
        return _GLOBALS[module, name]
    except KeyError:
        raise Refusal(
            f"names the global {f'{module}.{name}'[:100]!r}; such a pickle can run any code"
        ) from None


def kind(value: object) -> str:
    """What to call a value in an error."""
    return value.name if isinstance(value, Global) else type(value).__name__.lower()


def _cut(code: int) -> str:
    if code < 0:
        return "the data is cut: it ends without a STOP"
    return f"{_name(code)} is cut or has too few operands"


def _name(code: int) -> str:
    import pickletools  # only needed for an error

    names = {ord(known.code): known.name for known in pickletools.opcodes}
    return names.get(code, f"0x{code:02x}")


U1, U2, I4, U4, U8, F8 = (struct.Struct(layout) for layout in ("<B", "<H", "<i", "<I", "<Q", ">d"))
_PROTO: Final = 0x80
_STOP: Final = ord(".")
_LONGEST_LINE: Final = 200


def operations(also: Mapping[int, Operation]) -> tuple[Operation, ...]:
    """The operations that every machine knows, and these; all others refuse."""
    known = {**_OPERATIONS, **also}
    return tuple(known.get(code) or _not_allowed(code) for code in range(256))


def _not_allowed(code: int) -> Operation:
    def refuse(_: Machine) -> None:
        raise Refusal(f"operation {_name(code)} is not allowed")

    return refuse


def _integer1(machine: Machine) -> None:
    window = machine.window
    machine.push(window.data[window.at])
    window.at += 1


def _get1(machine: Machine) -> None:
    window = machine.window
    machine.stack.append(machine.recall(window.data[window.at]))
    window.at += 1


_OPERATIONS: Final[Mapping[int, Operation]] = {
    ord("("): lambda m: m.mark(),
    0x95: lambda m: m.frame(),
    ord("N"): lambda m: m.none(),
    ord("K"): _integer1,
    ord("M"): lambda m: m.integer(U2),
    ord("J"): lambda m: m.integer(I4),
    0x8A: lambda m: m.long(U1),
    0x8B: lambda m: m.long(I4),
    ord("G"): lambda m: m.integer(F8),
    0x8C: lambda m: m.string(U1),
    ord("X"): lambda m: m.string(U4),
    0x8D: lambda m: m.string(U8),
    ord(")"): lambda m: m.make_tuple(0),
    0x85: lambda m: m.make_tuple(1),
    0x86: lambda m: m.make_tuple(2),
    0x87: lambda m: m.make_tuple(3),
    ord("t"): lambda m: m.marked_tuple(),
    ord("}"): lambda m: m.make_dict(),
    ord("s"): lambda m: m.set_item(),
    ord("u"): lambda m: m.set_items(),
    0x94: lambda m: m.memoize(),
    ord("q"): lambda m: m.put(U1),
    ord("r"): lambda m: m.put(U4),
    ord("h"): _get1,
    ord("j"): lambda m: m.get(U4),
    ord("c"): lambda m: m.named_global(),
    0x93: lambda m: m.stack_global(),
    ord("R"): lambda m: m.reduce(),
}
