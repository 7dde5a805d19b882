"""The reference of the command line, as Markdown, from what the commands say of themselves.

    python tools/command_reference.py    prints it

`tools/man_page.py` makes the manual page from the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import click
from man_page import EXIT_CODES, VARIABLES

from memexport.cli import COMMANDS, main


def page() -> str:
    """Every command with its options."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield "# Command line\n"
    yield from _paragraphs(inspect.getdoc(main.callback) or "")
    yield "\nThe same is in `memexport COMMAND --help` and in `man memexport`.\n"
    yield from _table(("command", "what it does"), [_entry(name) for name in COMMANDS])
    for name in COMMANDS:
        yield from _command(name)
    yield "\n## Exit codes\n"
    yield from _table(("code", "meaning"), EXIT_CODES)
    yield "\n## Environment\n"
    yield from _table(("variable", "what it says"), [(f"`{name}`", text) for name, text in VARIABLES])


def _entry(name: str) -> tuple[str, str]:
    return f"[`{name}`](#memexport-{name})", COMMANDS[name].help


def _command(name: str) -> Iterator[str]:
    """One command: how it is called, what it does, its options."""
    parent = click.Context(main, info_name="memexport")
    command = main.get_command(parent, name)
    if command is None:
        raise LookupError(name)
    context = click.Context(command, info_name=name, parent=parent)
    yield f"\n## memexport {name}\n"
    usage = " ".join(("memexport", name, *command.collect_usage_pieces(context)))
    yield from ("```text", usage, "```", "")
    yield from _paragraphs(command.help or "")
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    yield ""
    yield from _table(("option", "what it does"), [(f"`{r[0]}`", r[1]) for r in records if r])


def _paragraphs(text: str) -> Iterator[str]:
    """Text with empty lines between paragraphs; one after click's mark keeps its lines."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ("```text", *paragraph.splitlines()[1:], "```", "")
        else:
            yield from (*paragraph.splitlines(), "")


def _table(heading: tuple[str, str], rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f"| {heading[0]} | {heading[1]} |"
    yield "| --- | --- |"
    for term, meaning in rows:
        yield f"| {_cell(term)} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    """Text that ends no cell, and that is not taken for HTML or emphasis outside of code."""
    text = " ".join(text.split()).replace("|", r"\|")
    return text if text.startswith(("`", "[")) else text.replace("<", "&lt;").replace("*", r"\*")


if __name__ == "__main__":
    print(page())
