"""The memo of a snapshot's pickle: a million entries in it take four bytes each."""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np

from memexport.model import Column
from memexport.sources._pickle_machine import Refusal

TAG_BITS: Final = 3
MAX_PAYLOAD: Final = 2 ** (32 - TAG_BITS) - 1

UNSET, OBJECT, STACK, ROW, TEXT, FRAME, SPENT, PAIR = range(8)
"""What a memo index stands for: nothing; an object, by its number; what an object has become once it was
used: a stack, a row, a text, a frame; an object that was used and is gone; two numbers of 14 bits each."""

PAIR_BITS: Final = 14


class Settled:
    """Stands on the machine's stack for an object that has become a stack, row or frame, or is gone."""

    __slots__ = ("payload", "tag")

    def __init__(self, tag: int, payload: int) -> None:
        self.tag = tag
        self.payload = payload


class Memo:
    """What the pickle has put into its memo, by index. Each index is set once."""

    def __init__(self) -> None:
        self.codes = array("I")
        self.count = 0
        self._objects: list[Any] = []

    def put(self, index: int, value: Any) -> None:
        """Set the index. The caller has bounded it.

        Raises:
            Refusal: it is set already.
        """
        if index < len(self.codes):
            if self.codes[index]:
                raise Refusal(f"memo index {index} is set a second time")
        else:
            self.codes.frombytes(bytes(4 * (index + 1 - len(self.codes))))
        self.codes[index] = len(self._objects) << TAG_BITS | OBJECT
        self._objects.append(value)
        self.count += 1

    def extend(self, codes: Column) -> None:
        """Set the next indexes, all after any that is set, to these codes."""
        self.codes.frombytes(codes.astype(np.uint32, copy=False).view(np.uint8).data)
        self.count += len(codes)

    @property
    def is_dense(self) -> bool:
        """Whether the next index that MEMOIZE sets is the first that was never set."""
        return self.count == len(self.codes)

    def settle(self, index: int, tag: int, payload: int) -> None:
        """The object at the index has become this; let go of it."""
        code = self.codes[index]
        if code & 7 == OBJECT:
            self._objects[code >> TAG_BITS] = None
        self.codes[index] = payload << TAG_BITS | tag

    def get(self, index: int) -> tuple[int, int]:
        """The tag and payload at the index."""
        code = self.codes[index] if index < len(self.codes) else UNSET
        return code & 7, code >> TAG_BITS

    def object(self, payload: int) -> Any:
        """The object with this number."""
        return self._objects[payload]

    def at(self, indexes: Column) -> Column:
        """The codes at many indexes at once, `UNSET` for those out of range."""
        known = np.frombuffer(self.codes, np.uint32)
        if not len(known):
            return np.zeros(len(indexes), np.uint32)
        codes = known[np.minimum(indexes, len(known) - 1)]
        codes[indexes >= len(known)] = UNSET
        return codes
