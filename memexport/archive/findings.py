"""What a reader of an archive's numbers should know of how they were read, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from memexport.archive.codec import SCHEMA_MAJOR, SCHEMA_MINOR
from memexport.archive.framing import RecordReader
from memexport.model import SCHEMA_VERSION


@dataclass
class Findings:
    """What one pass over an archive met.

    Attributes:
        written_by: the schema's version, major and minor.
        complete: the recording's end was found.
        lost_events: those that must have been in lost records, as far as that can be known.
        bad_ids: values that refer to an entry that no table has.
        unknown_records: records that hold nothing this version knows; the next three are alike.
        rest_begins: the byte after the recording's end, if the file goes on there.
    """

    written_by: tuple[int, int] = (SCHEMA_MAJOR, SCHEMA_MINOR)
    complete: bool = False
    lost_events: int = 0
    bad_ids: int = 0
    unknown_records: int = 0
    unknown_events: int = 0
    unknown_values: int = 0
    unknown_columns: set[int] = field(default_factory=set)
    rest_begins: int | None = None

    def sentences(self, reader: RecordReader, lost_entries: int) -> tuple[str, ...]:
        """A sentence for each finding, what was lost first."""
        return (*self._lost(reader, lost_entries), *self._newer())

    def _lost(self, reader: RecordReader, lost_entries: int) -> Iterator[str]:
        if reader.gaps:
            places = "" if reader.gaps == 1 else f" in {reader.gaps} places, the first"
            where = f"damaged or cut{places} at byte {reader.first_gap}"
            yield f"the archive is {where}: {reader.lost_bytes} bytes are lost"
        if self.lost_events:
            yield f"{self.lost_events} events are lost"
        if not self.complete:
            yield "the recording has no end: it was cut short, or is still being written"
        if self.rest_begins is not None:
            yield f"what follows the end of the recording, from byte {self.rest_begins}, is not read"
        if lost_entries:
            yield f"{lost_entries} names, stacks or devices are lost, and shown as (lost)"
        if self.bad_ids:
            yield f"{self.bad_ids} values refer to names, stacks or devices that the file does not hold"

    def _newer(self) -> Iterator[str]:
        if self.written_by > (SCHEMA_MAJOR, SCHEMA_MINOR):
            version = ".".join(map(str, self.written_by))
            yield f"written by schema {version}, read by {SCHEMA_VERSION}: what is new in it is left out"
        if self.unknown_records:
            yield f"{self.unknown_records} records of an unknown type are left out"
        if self.unknown_columns:
            numbers = ", ".join(map(str, sorted(self.unknown_columns)))
            yield f"columns of an unknown type are left out: {numbers}"
        if self.unknown_events:
            yield f"{self.unknown_events} events of an unknown kind are left out"
        if self.unknown_values:
            yield f"{self.unknown_values} unknown phases or categories are shown as not known"
