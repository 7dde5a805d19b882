"""Reads the Chrome trace JSON that torch.profiler (Kineto) writes, plain or gzip.

What it has to say of memory are its "[memory]" events, which are there if it was recorded with
`profile_memory=True`. The events around them say which operator, module call, step and phase each belongs to.
GPU kernels, runtime calls, flows and Python functions say nothing of memory, and are passed over.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from memexport.errors import InputError
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources._kineto_about import About
from memexport.sources._kineto_batches import BatchMaker, Meaning, Steps
from memexport.sources._kineto_counters import Counters, lowest_sums
from memexport.sources._kineto_kinds import TooManyError
from memexport.sources._kineto_nesting import Nesting, TooDeepError
from memexport.sources._kineto_order import in_order_of_end
from memexport.sources._kineto_pieces import Pieces
from memexport.sources._kineto_reader import EventReader
from memexport.sources._kineto_sort import SortedRows
from memexport.sources._kineto_text import TextFile, first_text

_BLOCK: Final = 8_192
_EVENTS_KEY: Final = b'"traceEvents"'
_KINETO_SIGNS: Final = (b'"schemaVersion"', b'"deviceProperties"')
_SIGNS: Final = (*_KINETO_SIGNS, b'"baseTimeNanoseconds"', b'"displayTimeUnit"', b'"ph"')
_OWN_BEGINNING: Final = b'{"displayTimeUnit":"ns"}'
_HOW_TO: Final = "torch.profiler.profile(profile_memory=True, record_shapes=True, with_modules=True)"
_YEAR_2000_NS: Final = 946_684_800 * 10**9


class KinetoSource:
    """A torch.profiler trace. It is read and sorted when this is constructed, in bounded memory.

    An operator is an OPERATOR, under the name that the file gives it ("aten::addmm"); "ProfilerStep#3" is the
    SPAN of a step, a module's call (`with_modules=True`) one of the module, "Linear_0" in "Sequential_0";
    other annotations are SPANs of the user's. Memory is counted for the innermost operator on its thread, so
    an operator's size has no bytes in it that one inside it has; but operators that do nothing other than to
    get memory, as `aten::empty`, get it for their caller.

    A phase is only given where something says it: BACKWARD inside autograd's functions, FORWARD inside a
    module's call, RECOMPUTE where the one is inside the other, OPTIMIZER and OTHER inside the optimizer's
    `step` and `zero_grad`.

    Raises:
        InputError: it cannot be read, is not JSON, or has no "[memory]" events.
    """

    info: RecordingInfo
    tables: Tables

    def __init__(self, path: str | os.PathLike[str], progress: Callable[[float], None] | None = None) -> None:
        self._path = Path(path)
        self.tables = Tables()
        self._done = 0
        self._rows = SortedRows()
        self._reader = EventReader(self.tables.strings)
        self._contradictions: Mapping[int, int] = {}
        try:
            pieces = self._read(progress)
            about = About(pieces.before, pieces.after)
            self._check_memory(pieces, about)
            self.info = self._described(about)
            self._meaning = self._explained(about)
            self._lowest = self._lowest_sums()
            self._findings = tuple(self._found(pieces, about))
        except BaseException:
            self.close()
            raise

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether it begins like a trace: an object with traceEvents, or what Kineto writes before them."""
        text = first_text(head)
        if not text.lstrip().startswith(b"{"):
            return False
        if _EVENTS_KEY in text:
            return any(sign in text for sign in _SIGNS)
        return all(sign in text for sign in _KINETO_SIGNS)

    def batches(self) -> Iterator[EventBatch]:
        """Every event that says something about memory or about where it was used, in order."""
        self._done = 0
        counters = Counters(self._lowest)
        maker = BatchMaker(self._meaning, counters)
        nesting = Nesting(self._meaning.kinds, self.tables.strings)
        try:
            blocks = self._rows.blocks(_BLOCK)
            for rows in in_order_of_end(blocks, nesting, self._meaning.device):
                for begin in range(0, len(rows), _BLOCK):
                    part = rows[begin : begin + _BLOCK]
                    self._done += len(part)
                    yield maker.batch(part)
        except TooDeepError as error:
            raise InputError(self._path, None, "more calls are open at once than any program has") from error
        self._contradictions = counters.contradictions

    def end(self) -> RecordingEnd:
        """What is missing or cannot be vouched for, and how many requests for memory failed."""
        return RecordingEnd((*self._findings, *self._contradictory()), ooms=self._reader.failures or None)

    @property
    def fraction_read(self) -> float | None:
        """How many of the rows the running pass has handed out, 0 to 1."""
        return self._done / self._rows.count

    def close(self) -> None:
        """Give the temporary file back, if there is one. Calling it twice does nothing."""
        self._rows.close()

    def _read(self, progress: Callable[[float], None] | None) -> Pieces:
        """Take all rows of the file."""
        text = TextFile(self._path)
        try:
            pieces = Pieces(text)
            for events, array in pieces.events():
                self._rows.add(self._reader.rows(events, array))
                if progress is not None:
                    progress(text.fraction_read)
            self._rows.finish()
        except TooManyError as error:
            raise InputError(self._path, None, str(error)) from error
        except OSError as error:
            what = (
                f"there is no room for temporary files in {tempfile.gettempdir()}: {error.strerror or error}"
            )
            raise InputError(self._path, None, what, hint="set TMPDIR to a folder with more") from error
        finally:
            text.close()
        return pieces

    def _check_memory(self, pieces: Pieces, about: About) -> None:
        """See that there is something to say of memory."""
        if self._reader.changes:
            return
        hint = None
        if pieces.before == _OWN_BEGINNING:
            what, hint = (
                "memexport wrote it for viewers: nothing is read from it",
                "read what it was made from",
            )
        elif pieces.cut_at is not None:
            what = f"has no [memory] events up to byte {pieces.cut_at} of its text, where it is cut"
        elif skipped := pieces.skipped + self._reader.skipped:
            what = f"has no [memory] events that can be read; {skipped} are not what torch.profiler writes"
        elif about.memory_was_profiled:
            what = "has no [memory] events: nothing was allocated while it was recorded"
        else:
            what, hint = "has no [memory] events: it was recorded without profile_memory=True", _HOW_TO
        raise InputError(self._path, None, what, hint)

    def _described(self, about: About) -> RecordingInfo:
        names, order = self._reader.devices(), self._reader.devices_in_order()
        pids = self._reader.pids()
        return about.info(
            [about.device(*names[number]) for number in order],
            (self._rows.first or 0) + (about.base_ns or 0),
            pids.pop() if len(pids) == 1 else None,
        )

    def _explained(self, about: About) -> Meaning:
        reader, order = self._reader, self._reader.devices_in_order()
        return Meaning(
            kinds=reader.kinds.list,
            device=np.argsort(np.array(order, np.int32)).astype(np.int32),
            thread=np.array([self.tables.strings.intern(name) for name in reader.threads()], np.uint32),
            steps=Steps(reader.steps(), reader.kinds.list),
            base_ns=about.base_ns or 0,
            rank=-1 if self.info.rank is None else self.info.rank,
        )

    def _lowest_sums(self) -> dict[int, int]:
        """The least sum of changes on each device that says no totals."""
        without = self._reader.changes.keys() - self._reader.totals.keys()
        return lowest_sums(self._rows.blocks(_BLOCK), without) if without else {}

    def _found(self, pieces: Pieces, about: About) -> Iterator[str]:
        """A sentence for each finding, what was lost first."""
        if pieces.cut_at is not None:
            yield f"the file is cut at byte {pieces.cut_at} of its text: what came after is missing"
        if skipped := pieces.skipped + self._reader.skipped:
            yield f"{skipped} events are not what torch.profiler writes, and are left out"
        if not about.is_readable:
            yield "what the file says of itself, beside its events, cannot be read"
        if self._lowest:
            names = ", ".join(str(self.info.devices[self._meaning.device[d]]) for d in sorted(self._lowest))
            yield (
                f"{names}: the file has no totals, so allocated is counted from the lowest point: "
                "what was there all the time is missing"
            )
        if any(device.type == "cpu" for device in self.info.devices) and not self._lowest:
            yield "cpu: torch counts what was allocated while it profiled, not what was there before"
        if (self.info.start_time_unix_ns or 0) < _YEAR_2000_NS:
            yield "the file has no baseTimeNanoseconds: its times do not count from 1970"

    def _contradictory(self) -> Iterator[str]:
        for number, count in self._contradictions.items():
            if count:
                yield (
                    f"{self.info.devices[self._meaning.device[number]]}: {count} of "
                    f"{self._reader.changes[number]} totals are not the one before and the change since: "
                    "threads overlap, or events are missing"
                )
