"""What commands say: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from memexport import registry, remote
from memexport.analysis.text import human_bytes, printable
from memexport.errors import MemexportError

_LONGEST_LINE: Final = 4_000
"""A line of talk may name several files; the longest path has 4096 bytes."""


def answer(text: str) -> None:
    """Print a result. Its strings must be printable already; its line feeds are kept."""
    _write(sys.stdout, text)


class Answers:
    """What is said of one INPUT, or of each of several: as text under its name, as JSON in one array.

    Args:
        as_json: whether JSON was asked for.
        several: whether there are several INPUTs, be it that only one can be read.
    """

    def __init__(self, *, as_json: bool, several: bool) -> None:
        self._as_json = as_json
        self._several = several
        self._objects: list[dict[str, Any]] = []
        self._titles = 0

    def add(self, name: str, to_dict: Callable[[], dict[str, Any]], to_text: Callable[[], str]) -> None:
        """What there is to say of the INPUT with this name, in both forms."""
        if self._as_json:
            self._objects.append({"path": name, **to_dict()} if self._several else to_dict())
            return
        if self._several:
            answer(("\n" if self._titles else "") + f"==> {printable(name)} <==")
            self._titles += 1
        answer(to_text())

    def finish(self) -> None:
        """Print what had to wait for the last."""
        if self._as_json:
            answer(json.dumps(self._objects if self._several else self._objects[0], indent=2))


def say(line: str) -> None:
    """Print one line of talk, whatever is in it."""
    _write(sys.stderr, printable(line, _LONGEST_LINE))


def warn(warnings: Iterable[str]) -> None:
    """Print each warning on a line."""
    for warning in warnings:
        say(f"memexport: warning: {warning}")


def say_failure(error: MemexportError, about: str | None = None) -> None:
    """Say what went wrong on one line, what to do next on another, and nothing of where in the code."""
    what = str(error) if about is None or about in str(error) else f"{about}: {error}"
    say(f"memexport: {what}")
    if error.hint:
        say(f"hint: {error.hint}")


def say_written(path: str | Path, to: str | None = None) -> None:
    """Name the file that was written, how large it is, and what to do with it next."""
    size = "" if remote.is_url(path) else f" ({human_bytes(Path(path).stat().st_size)})"
    hint = registry.exporter_for(path, to).next_step.replace("{path}", str(path))
    say(f"Wrote {path}{size}. {hint}".rstrip())


def _write(stream: TextIO, text: str) -> None:
    # A terminal that cannot show a character gets its escape, not a traceback.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
