"""INPUT as an argument: any path, of which shells complete those that may be recordings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

import click
from click.shell_completion import CompletionItem

from memexport import registry

_PLAIN: Final = re.compile(r"[\w./,=+@%~-]+")
"""Names that a shell takes as they are; with others, it completes better itself."""

TRACES: Final = tuple(
    suffix
    for format_ in registry.EXPORTERS
    if format_.name in ("perfetto", "chrome")
    for suffix in format_.suffixes
)


def complete_format(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """The formats that can be written."""
    formats = [format_ for format_ in registry.EXPORTERS if format_.name.startswith(incomplete)]
    return [CompletionItem(format_.name, help=format_.summary) for format_ in formats]


def complete_script(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Files, unless it is a module that is to run."""
    return [] if ctx.params.get("module") else [CompletionItem(incomplete, type="file")]


class InputFile(click.Path):
    """The name of a file that memexport reads.

    Args:
        more: suffixes of what is read beside recordings.
    """

    def __init__(self, more: tuple[str, ...] = ()) -> None:
        super().__init__()
        recordings = {suffix for format_ in registry.SOURCES for suffix in format_.suffixes}
        self._suffixes = tuple(sorted(recordings.union(more)))

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """The files with a fitting suffix, and the folders; where none fits, whatever the shell finds."""
        found = sorted(self._fitting(incomplete))
        if all(name.endswith("/") for name in found) or not all(map(_PLAIN.fullmatch, found)):
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in found]

    def _fitting(self, incomplete: str) -> Iterator[str]:
        folder, _, begin = incomplete.rpartition("/")
        prefix = f"{folder}/" if "/" in incomplete else ""
        try:
            with os.scandir(os.path.expanduser(prefix) or ".") as entries:  # noqa: PTH111 - a text, as typed
                for entry in entries:
                    is_hidden = entry.name.startswith(".") and not begin.startswith(".")
                    if is_hidden or not entry.name.startswith(begin):
                        continue
                    if entry.is_dir():
                        yield f"{prefix}{entry.name}/"
                    elif entry.name.lower().endswith(self._suffixes):
                        yield prefix + entry.name
        except OSError:
            return
