"""What memexport reads: one file per format, one line each in `memexport.registry`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables


class Source(Protocol):
    """A recording in a file, opened. The class also has `sniff`; it is constructed with the file's path.

    One that reads all of the file when it is constructed takes a `progress` too: a function that it calls
    with the fraction read, or None.

    Constructing reads what `info` needs and raises `InputError` for a file that is not of this format or
    cannot be opened. Nothing in the file is ever executed.
    """

    info: RecordingInfo
    tables: Tables

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether a file that begins with these bytes (up to 64 KiB) is of this format."""
        ...

    def batches(self) -> Iterator[EventBatch]:
        """Every event, in order, in batches of a few thousand.

        Each call reads the file again from its start. Ids in the columns are valid in `tables` as soon as the
        batch is yielded, and mean the same in every pass.

        Raises:
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        ...

    def end(self) -> RecordingEnd:
        """Warnings and totals. Complete once a pass of `batches` is exhausted."""
        ...

    @property
    def fraction_read(self) -> float | None:
        """How much of the file the running pass has read, 0 to 1; None if that cannot be known."""
        ...

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        ...


__all__: Sequence[str] = ["Source"]
