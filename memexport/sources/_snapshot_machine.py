"""The pickle machine for snapshots: knows where in a snapshot it is, so that long lists need not be kept."""

from __future__ import annotations

from typing import Any, Final

from memexport.sources import _pickle_machine as pickle_machine
from memexport.sources._pickle_machine import U1, U4, U8, Machine, Refusal, kind
from memexport.sources._pickle_window import Window
from memexport.sources._snapshot_builder import Builder
from memexport.sources._snapshot_collectors import BlockRows, Collector, SegmentRows, TraceRows
from memexport.sources._snapshot_frames import KNOWN_FRAMES
from memexport.sources._snapshot_memo import OBJECT, PAIR, PAIR_BITS, STACK, TEXT, UNSET, Settled
from memexport.sources._snapshot_runs import Runs
from memexport.sources._snapshot_values import Items, Record, now

MAX_ITEMS: Final = 100_000
"""Of a dict: those of a snapshot have a dozen."""

_OBJECT_BYTES: Final = 60


class SnapshotMachine(Machine):
    """Knows lists, truth values and bytes as well.

    The lists of segments, blocks and trace entries become collectors: what was put into them is a row as
    soon as the next item comes. Such a list is known by where it is made; one that is made elsewhere and
    referred to later is kept, and read in the end.
    """

    def __init__(self, window: Window, builder: Builder) -> None:
        super().__init__(window)
        self._builder = builder
        self._memo = builder.memo
        self._meter = builder.meter
        self._runs = Runs(window, builder)

    # What is made.

    def make_dict(self) -> None:
        collector = self._collector()
        if collector is not None:
            self._flush(collector)
            if type(collector) is TraceRows and self._read_run(collector):
                return
        record = Record()
        self._meter.made(record)
        if not self.stack:
            record.collects = "root"
        elif type(collector) is SegmentRows:
            record.collects = "segment"
        self.push(record)

    def _read_run(self, trace: TraceRows) -> bool:
        """Whether this entry could be read together with those that follow it."""
        if not self.marks or self.marks[-1] != len(self.stack):
            return False
        self.window.at -= 1
        memoized = self._runs.read(trace)
        if memoized is None:
            self.window.at += 1
            return False
        self.objects += memoized
        return True

    def make_list(self) -> None:
        """EMPTY_LIST."""
        made = self._made_list()
        if type(made) is Items:
            self._meter.made(made)
        self.push(made)

    def _made_list(self) -> Items | Collector:
        if not self.stack:
            return SegmentRows(self._builder)
        parent, key = self._parent()
        match parent.collects if isinstance(parent, Record | Items) else "", key:
            case "root", "segments":
                return SegmentRows(self._builder)
            case "root", "device_traces":
                traces = Items()
                traces.collects = "traces"
                return traces
            case "traces", _:
                return TraceRows(self._builder, f"device_traces[{self._number_in(parent)}]")
            case "segment", "blocks":
                return BlockRows(self._builder, f"segments[{self._builder.segments.count}].blocks")
        return Items()

    def _parent(self) -> tuple[Any, Any]:
        """What a new value will probably be put into, and under which key. A wrong guess does no harm."""
        top = self.stack[-1]
        around = self.stack[self.marks[-1] - 1] if self.marks and self.marks[-1] else None
        if type(top) is not str:
            return (top, None) if type(top) is Items and top.collects else (around, None)
        below = self.stack[-2] if len(self.stack) > 1 else None
        return (below if type(below) is Record else around), top

    def _number_in(self, parent: Items) -> int:
        """The index that a new item will have."""
        waiting = 0 if self.stack[-1] is parent else len(self.stack) - self.marks[-1]
        return len(parent) + waiting

    def _collector(self) -> Collector | None:
        """The collector into which a new value will be put."""
        if self.marks and self.marks[-1]:
            around = self.stack[self.marks[-1] - 1]
            if isinstance(around, Collector):
                return around
        top = self.stack[-1] if self.stack else None
        return top if isinstance(top, Collector) else None

    def _flush(self, collector: Collector) -> None:
        """Make rows of the items that wait above the mark: as another comes, they will not change."""
        if self.marks and len(self.stack) > self.marks[-1]:
            begin = self.marks[-1]
            if self.stack[begin - 1] is collector:
                for item in self.stack[begin:]:
                    collector.take(item)
                del self.stack[begin:]

    def mark(self) -> None:
        super().mark()
        top = self.stack[-1] if self.stack else None
        if type(top) is Items and not top and top.settled is None:
            self._frames_at_once(top)

    def _frames_at_once(self, made: Items) -> None:
        """Make a stack of the list if what comes are nothing but frames that are known, and its end."""
        window = self.window
        frames = KNOWN_FRAMES.match(window.data, window.at)
        if frames is None:
            return
        stack = self._builder.frames.of_references(frames[1])
        if stack is not None:
            self.marks.pop()
            window.at = frames.end(2)
            self._builder.frames.settle(made, STACK, stack)

    def push_tuple(self, values: list[Any]) -> None:
        self._meter.charge(_OBJECT_BYTES + 40 * len(values))
        super().push_tuple(values)

    def make_truth(self, value: bool) -> None:
        """NEWTRUE and NEWFALSE."""
        self.push(value)

    def make_bytes(self, layout: Any) -> None:
        """BINBYTES and its kind."""
        data = self._bytes(self.number(layout))
        self._meter.charge(_OBJECT_BYTES + len(data))
        self.push(data)

    def text(self, data: bytes) -> str:
        self._meter.charge(_OBJECT_BYTES + len(data))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return _with_surrogates(data)

    # What is put into what.

    def append(self) -> None:
        """APPEND."""
        value = self.pop()
        self._put([value])

    def appends(self) -> None:
        """APPENDS."""
        self._put(self.pop_to_mark())

    def _put(self, values: list[Any]) -> None:
        target = self.top()
        if isinstance(target, Collector):
            for value in values:
                target.take(value)
        elif type(target) is Items and target.settled is None:
            self._meter.added(target, len(values))
            target.extend(values)
        else:
            raise Refusal(f"items put into a {kind(target)}")

    def update(self, target: Any, keys: list[Any], values: list[Any]) -> None:
        if target.settled is not None:
            raise Refusal("a dict changes after it was used")
        if target.collects == "root" and len({*target, *keys}) < len(target) + len(keys):
            raise Refusal("a key is set twice")
        self._meter.added(target, len(keys))
        super().update(target, keys, values)
        if len(target) > MAX_ITEMS:
            raise Refusal("a dict of too many items")

    # The memo.

    def memoize(self) -> None:
        self.remember(self._memo.count)

    def remember(self, index: int) -> None:
        if index >= self.objects:
            raise Refusal(f"memo index {index} is beyond all values")
        value = self.top()
        self._memo.put(index, value)
        if isinstance(value, Record | Items):
            value.memo = index

    def recall(self, index: int) -> object:
        tag, payload = self._memo.get(index)
        if tag == OBJECT:
            return now(self._memo.object(payload))
        if tag == UNSET:
            raise Refusal(f"memo index {index} was never set")
        if tag == TEXT:
            return self._builder.tables.strings[payload]
        if tag == PAIR:
            return payload >> PAIR_BITS, payload & (1 << PAIR_BITS) - 1
        return Settled(tag, payload)

    operations = pickle_machine.operations(
        {
            ord("]"): lambda m: m.make_list(),
            ord("a"): lambda m: m.append(),
            ord("e"): lambda m: m.appends(),
            0x88: lambda m: m.make_truth(True),
            0x89: lambda m: m.make_truth(False),
            ord("C"): lambda m: m.make_bytes(U1),
            ord("B"): lambda m: m.make_bytes(U4),
            0x8E: lambda m: m.make_bytes(U8),
        }
    )


def _with_surrogates(data: bytes) -> str:
    """As pickle reads a string with surrogates; a lone one, which no output can hold, becomes U+FFFD."""
    try:
        text = data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise Refusal("a string that is not UTF-8") from None
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
