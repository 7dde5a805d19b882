"""What commands say: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from memexport import registry, remote
from memexport.analysis.text import human_bytes, printable
from memexport.errors import MemexportError, OutputError

if TYPE_CHECKING:
    from memexport.analysis.page import Style

_LONGEST_LINE: Final = 4_000
"""A line of talk may name several files; the longest path has 4096 bytes."""

_NARROWEST: Final = 40
"""Tables are not squeezed further."""


def page_style() -> Style:
    """How a page goes to stdout: in the width and colours of a terminal, else plain and 80 columns wide.

    `NO_COLOR` (https://no-color.org), `TERM=dumb` and `COLUMNS` are honoured.
    """
    from memexport.analysis.page import WIDE, Style

    blocks = _can_show("█▏")
    if not sys.stdout.isatty():
        return Style(blocks=blocks)
    from rich.console import Console

    console = Console(file=sys.stdout)
    system = None if console.no_color else console.color_system
    colours: Any = system if system in ("standard", "256", "truecolor") else None
    return Style(max(_NARROWEST, min(console.width, WIDE)), colours, blocks)


def _can_show(characters: str) -> bool:
    try:
        characters.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def answer(text: str) -> None:
    """Print a result. Its strings must be printable already; its line feeds are kept.

    Raises:
        BrokenPipeError: nobody reads it any more.
        OutputError: it cannot be written: the disk is full.
    """
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        write_no_more()
        raise OutputError("stdout", None, error.strerror or str(error)) from error


def write_no_more() -> None:
    """Let nothing that is still to be written to stdout complain again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Answers:
    """What is said of one INPUT, or of each of several: as text under its name, as JSON in one array.

    Args:
        as_json: whether JSON was asked for.
        several: whether there are several INPUTs, be it that only one can be read.
        as_markdown: whether the text is Markdown, and so an INPUT's name before it.
    """

    def __init__(self, *, as_json: bool, several: bool, as_markdown: bool = False) -> None:
        self._as_json = as_json
        self._as_markdown = as_markdown
        self._several = several
        self._objects: list[dict[str, Any]] = []
        self._titles = 0

    def add(self, name: str, to_dict: Callable[[], dict[str, Any]], to_text: Callable[[], str]) -> None:
        """What there is to say of the INPUT with this name, in both forms."""
        if self._as_json:
            self._objects.append({"path": name, **to_dict()} if self._several else to_dict())
            return
        if self._several:
            answer(("\n" if self._titles else "") + self._title(name))
            self._titles += 1
        answer(to_text())

    def _title(self, name: str) -> str:
        from memexport.analysis.markdown import code

        return f"### {code(name)}\n" if self._as_markdown else f"==> {printable(name)} <=="

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
    size = (
        "" if remote.is_url(path) or Path(path).is_dir() else f" ({human_bytes(Path(path).stat().st_size)})"
    )
    # Inside of quotes already where it is part of a query.
    hint = registry.exporter_for(path, to).next_step.replace("'{path}'", f"'{path}'")
    hint = hint.replace("{path}", shlex.quote(str(path)))
    say(f"Wrote {path}{size}. {hint}".rstrip())


def _write(stream: TextIO, text: str) -> None:
    # A terminal that cannot show a character gets its escape, not a traceback.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
