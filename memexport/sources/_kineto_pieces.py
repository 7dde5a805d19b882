"""Takes a trace apart into its events, some megabytes of them at a time, and what stands around them.

The fast way looks for the separator that the file itself puts between events, and cuts at the last one. A cut
in the wrong place (in a string, or inside an event) leaves a string or a bracket open on one side of it,
which the decoder reports; then `_kineto_layout` finds the right place.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from memexport.errors import InputError
from memexport.sources._kineto_events import Event
from memexport.sources._kineto_layout import Layout, layout_of, mended
from memexport.sources._kineto_text import TextFile

MAX_EVENT_BYTES: Final = 8 * 2**20
"""An event takes some hundred bytes; one with every module's state in its arguments, some ten thousand."""

_MAX_AROUND_BYTES: Final = 16 * 2**20
_MAX_KEYS: Final = 1_000  # named like the list of events, but inside of something else
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR: Final = re.compile(rb"\}\s*,\s*\{")
_DECODE_EVENTS: Final = msgspec.json.Decoder(list[Event]).decode
_DECODE_EVENT: Final = msgspec.json.Decoder(Event).decode
_CUT_OFF: Final = "Input data was truncated"
_Found = tuple[list[Event], bytes, bool]  # the last: whether the list of events ends with them
_DecodeFailure = (ValueError, RecursionError)  # msgspec's errors are ValueErrors, as UnicodeDecodeError is


class Pieces:
    """A trace's text in pieces; read `events` to its end, then the rest is known.

    Attributes:
        before: the members of the trace's object before its events, as a JSON object.
        after: those after them.
        cut_at: where the text ends before its object does, or its gzip data; None if they are whole.
        skipped: how many events are not what a trace may have.

    Raises:
        InputError: no list of events begins in the first 16 MiB.
    """

    def __init__(self, text: TextFile) -> None:
        self._text = text
        self._blocks = text.blocks()
        self.after = b"{}"
        self.cut_at: int | None = None
        self.skipped = 0
        self._separator: bytes | None = None
        self._find_events()

    def events(self) -> Iterator[tuple[list[Event], bytes]]:
        """Lists of events in the order of the file, each with the JSON array that it was decoded from.

        Raises:
            InputError: the text is no JSON from some place on, or an event is larger than any trace has.
        """
        is_whole = False
        while not is_whole:
            block = next(self._blocks, b"")
            self._buffer += block
            found = self._fast() or self._slow(at_end=not block)
            if found is not None:
                events, array, is_whole = found
                yield events, array
            elif not block:
                break
            elif len(self._buffer) > MAX_EVENT_BYTES:
                raise self._wrong(self._offset, f"an event takes more than {MAX_EVENT_BYTES} bytes")
        if is_whole:
            self._take_rest()
        else:
            self.cut_at = self._offset + len(self._buffer)

    def _find_events(self) -> None:
        buffer = b""
        for block in self._blocks:
            buffer += block
            keys = list(itertools.islice(_EVENTS_KEY.finditer(buffer), _MAX_KEYS))
            layout = layout_of(buffer) if keys else None
            for key in keys:
                if layout and layout.depth_at(key.start()) == 1 and layout.in_string[key.start()]:
                    self._begin(buffer, key, layout)
                    return
            if len(buffer) > _MAX_AROUND_BYTES:
                break
        raise self._wrong(None, "has no list of traceEvents")

    def _begin(self, buffer: bytes, key: re.Match[bytes], layout: Layout) -> None:
        self.before = mended(buffer[: key.start()], layout.in_string) + b"}"
        self._buffer, self._offset = buffer[key.end() :], key.end()

    def _fast(self) -> _Found | None:
        """What can be had without looking at each byte; None if nothing."""
        cut = self._buffer.rfind(self._separator) if self._separator else -1
        if cut < 0 or self._separator is None:
            return None
        array = b"[" + self._buffer[: cut + 1] + b"]"
        try:
            events = _DECODE_EVENTS(array)
        except _DecodeFailure:
            return None
        self._drop(cut + len(self._separator) - 1)
        return events, array, False

    def _slow(self, *, at_end: bool) -> _Found | None:
        """As many whole events as there are, and whether they are the last; None if there are none."""
        layout = layout_of(self._buffer)
        ends = layout.element_ends
        if layout.array_end is not None:
            stop = layout.array_end
        elif len(ends):
            stop = int(ends[-1])
        else:
            self._check_cut(layout, at_end=at_end)
            return None
        self._learn_separator(layout)
        events, array = self._decode(self._buffer[:stop], layout)
        self._drop(stop)
        if layout.array_end is None:
            rest = self._buffer.lstrip()
            rest = rest[1:] if rest.startswith(b",") else rest
            self._drop(len(self._buffer) - len(rest))
        return events, array, layout.array_end is not None

    def _drop(self, length: int) -> None:
        self._buffer = self._buffer[length:]
        self._offset += length

    def _learn_separator(self, layout: Layout) -> None:
        ends = layout.element_ends
        if len(ends):
            found = _SEPARATOR.match(self._buffer, int(ends[0]) - 1)
            self._separator = found[0] if found else None

    def _decode(self, piece: bytes, layout: Layout) -> tuple[list[Event], bytes]:
        array = b"[" + piece + b"]"
        with contextlib.suppress(*_DecodeFailure):
            return _DECODE_EVENTS(array), array
        array = b"[" + mended(piece, layout.in_string) + b"]"
        with contextlib.suppress(*_DecodeFailure):
            return _DECODE_EVENTS(array), array
        return self._decode_one_by_one(piece, layout)

    def _decode_one_by_one(self, piece: bytes, layout: Layout) -> tuple[list[Event], bytes]:
        events, texts, begin = [], [], 0
        for end in layout.element_ends.tolist():
            text = mended(piece[begin:end], layout.in_string[begin:end]).lstrip()
            text = text[1:] if text.startswith(b",") else text
            try:
                events.append(_DECODE_EVENT(text))
                texts.append(text)
            except msgspec.ValidationError:
                self.skipped += 1
            except _DecodeFailure as error:
                raise self._broken(end - len(text), error) from error
            begin = end
        if piece[begin:].strip(b", \t\r\n"):
            self.skipped += 1
        return events, b"[" + b",".join(texts) + b"]"

    def _check_cut(self, layout: Layout, *, at_end: bool) -> None:
        """What is left at the end of the text must be the beginning of an event."""
        if not at_end or not self._buffer.strip():
            return
        try:
            _DECODE_EVENT(mended(self._buffer, layout.in_string))
        except _DecodeFailure as error:
            if str(error) != _CUT_OFF:
                raise self._broken(0, error) from error

    def _take_rest(self) -> None:
        """Keep the members after the events; a file may go on behind the object's end, which is ignored."""
        rest = self._buffer[1:]
        for block in self._blocks:
            if len(rest) < _MAX_AROUND_BYTES:
                rest += block
        layout = layout_of(rest)
        stop = len(rest) if layout.array_end is None else layout.array_end
        if layout.array_end is None or self._text.is_cut:
            self.cut_at = self._offset + 1 + len(rest)
        self.after = b"{" + mended(rest[:stop], layout.in_string).lstrip().removeprefix(b",") + b"}"

    def _broken(self, begin: int, error: Exception) -> InputError:
        """What the decoder has to say of the event that begins at this place of the buffer."""
        if isinstance(error, RecursionError):
            return self._wrong(self._offset + begin, "an event is nested too deeply")
        what, _, place = str(error).partition(" (byte ")
        within = int(place.rstrip(")")) if place.rstrip(")").isdecimal() else 0
        return self._wrong(self._offset + begin + within, what)

    def _wrong(self, position: int | None, what: str) -> InputError:
        unit = "unpacked byte" if self._text.is_gzip else "byte"
        where = None if position is None else f"{unit} {position}"
        return InputError(self._text.path, where, f"{what}; this is not what torch.profiler writes")
