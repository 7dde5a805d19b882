"""Write the manual page, share/man/man1/memexport.1, from what the commands say of themselves.

python tools/man_page.py           writes it
python tools/man_page.py --check   exits with 1 if what is there is not what the commands say
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import memexport
from memexport.cli import COMMANDS, main

PAGE = Path(__file__).resolve().parent.parent / "share" / "man" / "man1" / "memexport.1"
EXIT_CODES = (
    ("0", "Done."),
    ("1", "A check failed."),
    ("2", "Wrong usage."),
    ("3", "The input cannot be read."),
    ("4", "The output cannot be written."),
    ("130", "Ended with Ctrl-C."),
)
VARIABLES = (
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "Where metrics go, with the other OTEL_ variables of OpenTelemetry."),
    ("PYTORCH_ALLOC_CONF", "The rules by which run --fake estimates what is reserved."),
    ("XDG_CACHE_HOME", "Where the compiled trace processor of query is kept; ~/.cache by default."),
)


def rendered() -> str:
    """The page, for man(1)."""
    return "\n".join(
        (
            f'.TH MEMEXPORT 1 "" "memexport {memexport.__version__}" "User Commands"',
            ".SH NAME",
            r"memexport \- record, convert and explain the memory of PyTorch programs",
            ".SH SYNOPSIS",
            r".B memexport",
            r"\fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
            ".SH DESCRIPTION",
            *paragraphs(inspect.getdoc(main.callback) or ""),
            "Each command says more with",
            r".BR \-\-help .",
            ".SH COMMANDS",
            *(line for name in COMMANDS for line in command_section(name)),
            ".SH EXIT STATUS",
            *definitions(EXIT_CODES),
            ".SH ENVIRONMENT",
            *definitions(VARIABLES),
            "",
        )
    )


def command_section(name: str) -> Iterator[str]:
    """One command: how it is called, what it does, its options."""
    context = click.Context(main, info_name="memexport")
    command = main.get_command(context, name)
    if command is None:
        raise LookupError(name)
    usage = command.collect_usage_pieces(click.Context(command, info_name=name, parent=context))
    yield f".SS {escaped(' '.join((name, *usage)))}"
    yield from paragraphs(command.help or "")
    for parameter in command.params:
        record = parameter.get_help_record(click.Context(command))
        if record is not None:
            yield from definitions([record])


def paragraphs(text: str) -> Iterator[str]:
    """Text with empty lines between paragraphs; one after click's mark keeps its lines."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        keeps_lines = paragraph.startswith("\b")
        lines = paragraph.removeprefix("\b\n").splitlines()
        if keeps_lines:
            yield ".nf"
        yield from map(escaped, lines)
        if keeps_lines:
            yield ".fi"


def definitions(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> Iterator[str]:
    """Terms and what they mean."""
    for term, meaning in rows:
        yield from (".TP", rf"\fB{escaped(term)}\fR", escaped(" ".join(meaning.split())))


def escaped(text: str) -> str:
    """As roff takes it: no line begins with its control characters, a hyphen stays one that can be typed."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


def run(arguments: list[str] | None = None) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    options = parser.parse_args(arguments)
    page = rendered()
    if options.check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print(f"{PAGE.name} is not what the commands say; run python tools/man_page.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run())
