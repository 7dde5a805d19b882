"""`memexport summary`: what used the memory, and when it peaked."""

from __future__ import annotations

import json
from pathlib import Path

import click

from memexport.cli.progress import progress_bar
from memexport.cli.terminal import answer


@click.command("summary")
@click.argument("recording", metavar="INPUT", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; scripts may depend on its keys."
)
def command(recording: Path, as_json: bool) -> None:
    """Say what used the memory in the recording INPUT, and when it peaked."""
    from memexport import pipeline

    with pipeline.open(recording) as opened, progress_bar(f"Reading {recording.name}") as progress:
        summary = opened.summary(progress)
    answer(json.dumps(summary.to_dict(), indent=2) if as_json else str(summary))
