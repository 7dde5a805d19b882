"""What is said of a request for memory that failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from memexport.analysis.text import human_bytes, printable
from memexport.tracker.oom.live import NOBODY, UNKNOWN, Counters, Held

HEADLINE: Final = "memexport: out of memory"
"""How every note begins: an error that has one is not reported again."""

_WIDTH: Final = 80
_LISTED: Final = 3
_NAME_WIDTH: Final = 42
_LABEL_WIDTH: Final = 12


@dataclass(frozen=True)
class OomReport:
    """A request for memory that failed, and who held the memory then. None for what is not known.

    `str()` gives the note that the error gets: at most 12 lines of at most 80 columns, but for the path.

    Attributes:
        request_bytes: what was asked for; rounded where only the error's message says it.
        device: where: "cuda:0".
        device_free_bytes: what the device had left outside of the allocator.
        operator, module, phase, step: who asked.
        stack: the code that asked, outermost frame first, without torch's; as "train.py:41:step".
        counters: the device's.
        held_on: the device that `held` is of: `device`, unless nothing that lives there is known.
        held: who holds its memory.
        write: writes the recording to a path.
    """

    request_bytes: int | None
    device: str | None
    device_free_bytes: int | None
    operator: str | None
    module: str | None
    phase: str | None
    step: int | None
    stack: tuple[str, ...]
    counters: Counters = UNKNOWN
    held_on: str | None = None
    held: Held = NOBODY
    write: Callable[[Path], None] | None = field(default=None, repr=False, compare=False)
    _saved: list[Path] = field(default_factory=list, repr=False, compare=False)

    @property
    def path(self) -> Path | None:
        """The recording, if it was saved."""
        return self._saved[0] if self._saved else None

    @property
    def fragmentation_bytes(self) -> int | None:
        """What the allocator had reserved but not in use; None where it does not say."""
        _, active, reserved = self.counters
        if active is None or reserved is None or reserved < active:
            return None
        return reserved - active

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the recording: the last events, and what lived. A file that is there is replaced.

        The suffix says the format.

        Raises:
            UsageError: no format fits the suffix.
            OutputError: it cannot be written.
        """
        assert self.write is not None, "only a report that a tracker made has a recording"  # noqa: S101
        self.write(Path(path))
        self._saved.append(Path(path))
        return Path(path)

    def __str__(self) -> str:
        lines = [self._headline(), *self._place(), *self._device()]
        lines += _shares("live", dict(self.held.categories), self._title())
        modules = {row.module: row.bytes for row in self.held.modules if row.module}
        lines += _shares("modules", modules, "")
        return "\n".join(lines + self._files())

    def _headline(self) -> str:
        asked = "" if self.request_bytes is None else f": {human_bytes(self.request_bytes)} requested"
        place = "" if self.device is None else f" on {self.device}"
        free = "" if self.device_free_bytes is None else f", {human_bytes(self.device_free_bytes)} free"
        return f"{HEADLINE}{place}{asked}{free}"

    def _place(self) -> list[str]:
        place = "" if self.operator is None else printable(self.operator, _NAME_WIDTH)
        place += f" of {printable(self.module, _NAME_WIDTH)}" if self.module else ""
        when = [self.phase or "", "" if self.step is None else f"step {self.step}"]
        said = f"{place} ({', '.join(filter(None, when))})" if any(when) else place
        return [_line("in", said.strip())] if self.operator or self.module or self.phase else []

    def _device(self) -> list[str]:
        allocated, _, reserved = self.counters
        if allocated is None:
            return []
        said = f"allocated {human_bytes(allocated)}"
        said += "" if reserved is None else f", reserved {human_bytes(reserved)}"
        unused = self.fragmentation_bytes
        return [_line("device", said + ("" if unused is None else f", unused {human_bytes(unused)}"))]

    def _title(self) -> str:
        return "" if self.held_on == self.device else f"on {self.held_on}: "

    def _files(self) -> list[str]:
        if self.path is None:
            return []
        path = _short(self.path)
        return [f"  {'written':{_LABEL_WIDTH}}{path}", f"  {'next':{_LABEL_WIDTH}}memexport summary {path}"]


def _shares(label: str, sizes: dict[str, int], title: str) -> list[str]:
    """The largest, a line each; the first one says what they are."""
    lines: list[str] = []
    for name, size in sorted(sizes.items(), key=lambda row: -row[1])[:_LISTED]:
        text = f"{title}{printable(name, _NAME_WIDTH - len(title) - 2)}"
        lines.append(_line("" if lines else label, f"{text:{_NAME_WIDTH}}{human_bytes(size):>12}"))
    return lines


def _line(label: str, text: str) -> str:
    line = f"  {label:{_LABEL_WIDTH}}{text}"
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}\N{HORIZONTAL ELLIPSIS}"


def _short(path: Path) -> str:
    """From the working directory, where that is shorter."""
    try:
        return printable(min(os.path.relpath(path), str(path), key=len))
    except (OSError, ValueError):  # the working directory is gone; another drive
        return printable(str(path))
