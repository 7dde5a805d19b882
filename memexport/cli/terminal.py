"""What commands say: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from memexport import registry
from memexport.analysis.text import human_bytes, printable


def answer(text: str) -> None:
    """Print a result. Its strings must be printable already; its line feeds are kept."""
    _write(sys.stdout, text)


def say(line: str) -> None:
    """Print one line of talk, whatever is in it."""
    _write(sys.stderr, printable(line))


def warn(warnings: Iterable[str]) -> None:
    """Print each warning on a line."""
    for warning in warnings:
        say(f"memexport: warning: {warning}")


def say_written(path: Path, to: str | None = None) -> None:
    """Name the file that was written, how large it is, and what to do with it next."""
    written = f"Wrote {path} ({human_bytes(path.stat().st_size)})."
    hint = registry.exporter_for(path, to).next_step.replace("{path}", str(path))
    say(f"{written} {hint}".rstrip())


def _write(stream: TextIO, text: str) -> None:
    # A terminal that cannot show a character gets its escape, not a traceback.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
