"""Strings that a Perfetto trace says once and then refers to by number."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.exporters import _titles
from memexport.exporters._perfetto_packets import ANNOTATION_NAMES
from memexport.model import Tables

_NO_OVERLOAD: Final = -1


class _Ids:
    """Which number the trace uses for each of a column's ids: dense from 1, so most take one or two bytes."""

    def __init__(self) -> None:
        self._iids = np.zeros(256, np.int64)

    def new(self, ids: npt.NDArray[Any]) -> list[int]:
        """Those of the ids that have no number yet, each once."""
        highest = int(ids.max(initial=0))
        if highest >= len(self._iids):
            self._iids = np.concatenate((self._iids, np.zeros(highest + 1, np.int64)))
        missing = ids[self._iids[ids] == 0]
        return list(dict.fromkeys(missing.tolist()))

    def give(self, id_: int, iid: int) -> None:
        self._iids[id_] = iid

    def of(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        iids: npt.NDArray[np.int64] = self._iids[ids]
        return iids


class Interning:
    """Numbers for event names and annotation values, and the InternedData that explains the new ones."""

    def __init__(self, tables: Tables) -> None:
        self._strings = tables.strings
        self._stacks = tables.stacks
        self._names = {kind: _Ids() for kind in range(len(_titles.SLICE_KINDS))}
        self._texts = _Ids()
        self._overloads = _Ids()
        self._sources = _Ids()
        self._own_names: dict[str, int] = {}
        self._own_texts: dict[str, int] = {}
        self._new_names: list[tuple[int, str]] = []
        self._new_texts: list[tuple[int, str]] = []

    def names(self, kind: int, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Event names of slices of one kind, from their `Titles.name`."""
        table = self._names[kind]
        for id_ in table.new(ids):
            table.give(id_, self.name(_titles.label(kind, id_, self._strings)))
        return table.of(ids)

    def texts(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Annotation values, from string ids; 0 for the null."""
        for id_ in self._texts.new(ids[ids != 0]):
            self._texts.give(id_, self.text(self._strings[id_]))
        return self._texts.of(ids)

    def overloads(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Annotation values: the overloads of operators, from the string ids of their names; 0 for none."""
        for id_ in self._overloads.new(ids):
            overload = _titles.operator_overload(self._strings[id_])
            self._overloads.give(id_, self.text(overload) if overload else _NO_OVERLOAD)
        return np.maximum(self._overloads.of(ids), 0)

    def sources(self, stacks: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Annotation values: the innermost frames of stacks ("file:line:function"); 0 for the null."""
        for id_ in self._sources.new(stacks[stacks != 0]):
            frame = self._stacks.frames(id_)[-1]
            self._sources.give(id_, self.text(self._strings[frame]))
        return self._sources.of(stacks)

    def name(self, text: str) -> int:
        """The number of an event name."""
        if text not in self._own_names:
            self._own_names[text] = len(self._own_names) + 1
            self._new_names.append((self._own_names[text], text))
        return self._own_names[text]

    def text(self, text: str) -> int:
        """The number of an annotation value."""
        if text not in self._own_texts:
            self._own_texts[text] = len(self._own_texts) + 1
            self._new_texts.append((self._own_texts[text], text))
        return self._own_texts[text]

    def write_new(self, interned_data: Any) -> bool:
        """Put what was numbered since the last call into an InternedData message; whether there was any."""
        found = bool(self._new_names or self._new_texts)
        for iid, text in self._new_names:
            interned_data.event_names.add(iid=iid, name=protobuf_text(text))
        for iid, text in self._new_texts:
            interned_data.debug_annotation_string_values.add(iid=iid, str=protobuf_text(text).encode())
        self._new_names.clear()
        self._new_texts.clear()
        return found


def write_vocabulary(interned_data: Any) -> None:
    """The entries that every trace has: annotation names and categories (iid: place in `SLICE_KINDS` + 1)."""
    for iid, category in enumerate(_titles.SLICE_KINDS, 1):
        interned_data.event_categories.add(iid=iid, name=category)
    for iid, name in enumerate(ANNOTATION_NAMES, 1):
        interned_data.debug_annotation_names.add(iid=iid, name=name)


def protobuf_text(text: str) -> str:
    """The text with lone surrogates escaped, which protobuf refuses; a name from a pickle may hold some."""
    return text.encode("utf-8", "backslashreplace").decode()
