"""The raw log of a running tracker: fixed-size binary rows, appended by the training threads.

A row is five numbers (`ROW`): a code, a context, and three integers whose meaning depends on the row's kind.
Appending one is a `struct.pack` and a `bytearray.extend`, both atomic under the interpreter's lock: no lock
of our own, no per-event Python object, 32 bytes a row until the drain thread takes it.

    kind          time          first         second
    OPERATOR      began         ended         net bytes
    ALLOCATION    when          bytes         storage id
    RELEASE       when          bytes         storage id
    SPAN          began         ended         0             a module call
    MARKER        when          0             0
    SAMPLE        when          0             0             a COUNTERS row follows
    SAMPLE        when          bytes         0             inside an operator on the CPU, more than tracked
    COUNTERS      allocated     active        reserved      of the code's device, for the row before it there
    STEP          when          0             0             a training step ended
    STEP          when          began         0             likewise, one that was not recorded in detail
    REQUEST       when          bytes or −1   stack id      a request for memory failed (its name is "oom"),
                                                            what the device had left then ("device_free")
    BEGINS        when          0             0             the next step begins here, not earlier
    BOUNDARY      when          when          0             an outermost module or optimizer began or ended
    DETAILS       inputs id     stack id      0             of the next operator in the row's thread
    IGNORED       began         ended         net bytes     a dispatched call that works on no memory
    CATEGORY      when          bytes         storage id    the storage turned out to be of this category
    MEMORY        when          bytes         0             what the allocator there gave, or (< 0) took back;
                                                            0: until then, it has told everything
    TRACE         when          text id       0             the OpenTelemetry span from here on; 0: none
    TENSORS       input bytes   output bytes  0             of the module call whose SPAN is the row before;
                                                            −1: unknown
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from typing import Final

import numpy as np

from memexport.model import Category, EventKind, Tables

# n has 8 bytes, as q has, and is packed in three quarters of the time.
ROW: Final = struct.Struct("@IInnn")
TWO_ROWS: Final = struct.Struct("@IInnnIInnn")
ROW_DTYPE: Final = np.dtype(
    [("code", "u4"), ("context", "u4"), ("time", "i8"), ("first", "i8"), ("second", "i8")]
)

REQUEST: Final = 0
OPERATOR: Final = int(EventKind.OPERATOR)
ALLOCATION: Final = int(EventKind.ALLOCATION)
RELEASE: Final = int(EventKind.RELEASE)
SAMPLE: Final = int(EventKind.SAMPLE)
SPAN: Final = int(EventKind.SPAN)
MARKER: Final = int(EventKind.MARKER)
BEGINS: Final = 7
COUNTERS: Final = 8
STEP: Final = 9
BOUNDARY: Final = 10
IGNORED: Final = 11
DETAILS: Final = 12
CATEGORY: Final = 13
MEMORY: Final = 14
TRACE: Final = 15
TENSORS: Final = 16

BELONG_TO_THE_ROW_BEFORE: Final = frozenset({COUNTERS, TENSORS})
"""Kinds of rows that are appended in one go with the row that they are about, and never cut from it."""

# A code is kind + device × 32 + label × 2048: the hot path adds these, the drain thread takes them apart.
DEVICE_UNIT: Final = 32
MAX_DEVICES: Final = 64
LABEL_UNIT: Final = DEVICE_UNIT * MAX_DEVICES


class Labels:
    """What a row's code and context stand for. The hot path extends the tables, the drain thread looks up.

    A label is a name (operator, module class, marker) with a category; a context is where something happened:
    module, phase, thread. Both are interned, so their number is bounded by the program, not by its running
    time.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.names: list[int] = []
        self.categories: list[int] = []
        self.modules: list[int] = []
        self.phases: list[int] = []
        self.threads: list[int] = []
        # Reentrant: a storage may be released, and its thread be seen for the first time, while it is held.
        self._growing = threading.RLock()
        self._labels: dict[tuple[str | None, Category], int] = {}
        self._contexts: dict[tuple[str | None, int, str], int] = {}
        # Plain integers again: by code and category.
        self._changed: dict[tuple[int, int], int] = {}

    def code(self, kind: int, name: str | None, category: Category = Category.UNKNOWN) -> int:
        """The code of rows of this kind and label on device 0."""
        key = (name, category)
        label = self._labels.get(key)
        if label is None:
            label = self._add_label(key)
        return label * LABEL_UNIT + kind

    def category_of(self, code: int) -> int:
        """The category of a code's label."""
        return self.categories[code // LABEL_UNIT]

    def with_category(self, code: int, category: Category) -> int:
        """The code of the same kind, device and name with another category."""
        key = code, int(category)
        changed = self._changed.get(key)
        if changed is None:
            name = self.tables.strings.get(self.names[code // LABEL_UNIT])
            changed = self._changed[key] = self.code(code % LABEL_UNIT, name, category)
        return changed

    def context(self, module: str | None, phase: int, thread: str) -> int:
        """The number of this context; `phase` is a plain integer of `Phase`, which hashes faster."""
        key = (module, phase, thread)
        context = self._contexts.get(key)
        if context is None:
            context = self._add_context(key)
        return context

    def text(self, text: str) -> int:
        """The number of a text that is no name; these may grow with the running time."""
        with self._growing:
            return self.tables.strings.intern(text)

    def stack(self, frames: Iterable[str]) -> int:
        """The number of a stack, outermost frame first; 0 for no frames."""
        with self._growing:
            return self.tables.stacks.intern(self.tables.strings.intern(frame) for frame in frames)

    def _add_label(self, key: tuple[str | None, Category]) -> int:
        name, category = key
        with self._growing:
            if key not in self._labels:
                self.names.append(self._intern(name))
                self.categories.append(category)
                self._labels[key] = len(self.names) - 1
            return self._labels[key]

    def _add_context(self, key: tuple[str | None, int, str]) -> int:
        module, phase, thread = key
        with self._growing:
            if key not in self._contexts:
                self.modules.append(self._intern(module))
                self.phases.append(phase)
                self.threads.append(self._intern(thread))
                self._contexts[key] = len(self.threads) - 1
            return self._contexts[key]

    def _intern(self, string: str | None) -> int:
        return 0 if string is None else self.tables.strings.intern(string)
