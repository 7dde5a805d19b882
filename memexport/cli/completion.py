"""`memexport completion`: what a shell needs to complete memexport's commands, options and files."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from memexport.cli.terminal import answer

_VARIABLE: Final = "_MEMEXPORT_COMPLETE"
"""Set by the script when it asks; the name is click's."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and recordings.

    \b
    bash: memexport completion bash > ~/.local/share/bash-completion/completions/memexport
    zsh:  memexport completion zsh > DIR/_memexport, with DIR in $fpath
    fish: memexport completion fish > ~/.config/fish/completions/memexport.fish
    """  # noqa: D301 - \b keeps the lines apart
    from memexport.cli import main

    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"this click has no completion for {shell}")
    answer(completion(main, {}, "memexport", _VARIABLE).source())
