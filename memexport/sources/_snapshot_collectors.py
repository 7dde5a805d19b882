"""The three lists of a snapshot that may be long: they keep no items, but make rows of them at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import Any

from memexport.sources._snapshot_builder import ADDRESS_LIMIT, Builder, whole
from memexport.sources._snapshot_memo import STACK, Settled
from memexport.sources._snapshot_values import Items, Misfit, Record, now, shown


class Collector(ABC):
    """Stands for a list of the pickle. What is put into it becomes a row.

    Attributes:
        name: what an error calls it.
        begin, count: which rows are its own.
    """

    def __init__(self, builder: Builder, name: str, begin: int) -> None:
        self.builder = builder
        self.name = name
        self.begin = begin
        self.count = 0

    def take(self, item: Any) -> None:
        """Make a row of the item.

        Raises:
            InputError: it is none; or other rows came after the list's own.
        """
        try:
            self._take(item)
        except Misfit as misfit:
            raise self.builder.wrong(f"{self.name}[{self.count}]", str(misfit)) from None
        self.count += 1

    @abstractmethod
    def _take(self, item: Any) -> None:
        """Make a row of the item."""

    def check_end(self, rows: int) -> None:
        """Whether the list's rows are the last of all, so that one can be added."""
        if self.begin + self.count != rows:
            if self.count:
                raise Misfit("comes after the list was complete")
            self.begin = rows


class TraceRows(Collector):
    """One device's trace.

    Attributes:
        used: whether it has been some device's.
    """

    def __init__(self, builder: Builder, name: str) -> None:
        super().__init__(builder, name, builder.traces.count)
        self.used = False

    @property
    def can_grow(self) -> bool:
        """Whether its rows are the last, so that others can be added to them."""
        return self.count > 0 and self.begin + self.count == self.builder.traces.count

    def _take(self, item: Any) -> None:
        self.check_end(self.builder.traces.count)
        self.builder.entry(item)


class BlockRows(Collector):
    """The blocks of the segment that comes next."""

    def __init__(self, builder: Builder, name: str) -> None:
        super().__init__(builder, name, builder.blocks.count)
        self._of = builder.segments.count
        self._bytes = 0
        self._without_address = array("I")

    def _take(self, item: Any) -> None:
        self.check_end(self.builder.blocks.count)
        if self._of != self.builder.segments.count:
            raise Misfit("comes after its segment was complete")
        size, has_address = self.builder.block(item, self._bytes)
        if not has_address:
            self._without_address.append(self.builder.blocks.count - 1)
        self._bytes += size

    def place(self, segment_address: int) -> None:
        """Give the segment's blocks their addresses."""
        if self._of != self.builder.segments.count:
            if self.count:
                raise Misfit("has the same blocks as another segment")
            return
        if self._without_address and segment_address + self._bytes >= ADDRESS_LIMIT:
            raise Misfit("has no place in the address space")
        addresses = self.builder.blocks.columns["address"]
        for row in self._without_address:
            addresses[row] += segment_address


class SegmentRows(Collector):
    """The segments."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder, "segments", builder.segments.count)
        self._blocks = builder.blocks.count

    def _take(self, item: Any) -> None:
        self.check_end(self.builder.segments.count)
        segment = now(item)
        if type(segment) is not Record:
            raise Misfit(f"is {shown(segment)}, not a dict")
        blocks = self._collected(segment.get("blocks"))
        if self._blocks + blocks.count != self.builder.blocks.count:
            raise Misfit("has more than one list of blocks")
        blocks.place(whole(segment, "address", ADDRESS_LIMIT, None))
        self._blocks = self.builder.blocks.count
        self.builder.segment(segment)

    def _collected(self, blocks: Any) -> BlockRows:
        """The blocks as rows, if they are none yet."""
        blocks = now(blocks)
        if type(blocks) is BlockRows:
            return blocks
        rows = BlockRows(self.builder, f"{self.name}[{self.count}].blocks")
        for block in listed(blocks, "blocks"):
            rows.take(block)
        return rows


def listed(value: Any, key: str) -> list[Any] | tuple[Any, ...]:
    """The value, which must be a list or a tuple; an empty one for None."""
    value = now(value)
    if value is None or (type(value) is Settled and (value.tag, value.payload) == (STACK, 0)):
        return ()
    if type(value) is Items or type(value) is tuple:
        return value
    raise Misfit(f"{key} is {shown(value)}, not a list")
