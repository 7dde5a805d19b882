"""What memexport writes: one file per format, one line each in `memexport.registry`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from memexport.exporters.destination import Destination, FileDestination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables


class Exporter(Protocol):
    """Takes the events of one recording and puts them somewhere.

    Calls come from one thread at a time: `begin` once, `write` for each batch in order, then `end` or `abort`
    once. An exporter of a file is constructed with a `Destination`.
    """

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the output. `info.devices` and `tables` grow before the batch that refers to what they gain.

        Raises:
            OutputError: it cannot be opened.
        """
        ...

    def write(self, batch: EventBatch) -> None:
        """Take one batch.

        What is written is in the operating system's hands on return, so that it survives the death of the
        process, unless the format cannot be read before it ends.

        Raises:
            OutputError: it cannot be written.
        """
        ...

    def end(self, end: RecordingEnd) -> None:
        """Complete the output. Nothing more is written.

        Raises:
            OutputError: it cannot be written.
        """
        ...

    def abort(self) -> None:
        """Give everything back after an error. Raises nothing; allowed before `begin` and after `end` too."""
        ...


@runtime_checkable
class LiveExporter(Exporter, Protocol):
    """One that tells of a recording while it is being made."""

    def watch(self, progress: Callable[[], RecordingEnd]) -> None:
        """Called after `begin` if the recording is live: `progress` says what its end would say now.

        It may be called from any thread until `end` or `abort` returns.
        """
        ...


__all__: Sequence[str] = ["Destination", "Exporter", "FileDestination", "LiveExporter"]
