"""`memexport push`: a recording's metrics to an OpenTelemetry collector, with their own times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from memexport.analysis.when import parse_when
from memexport.cli.files import InputFile
from memexport.cli.inputs import expanded, for_each, opened
from memexport.cli.progress import progress_bar
from memexport.cli.selecting import Whenever
from memexport.cli.terminal import say, warn
from memexport.errors import UsageError

if TYPE_CHECKING:
    from memexport.exporters.otlp import OtlpExporter

_INTERVAL: Final = "1s"


class Duration(click.ParamType[int]):
    """A length of time, in nanoseconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The nanoseconds; a usage error for what is no length of time."""
        if isinstance(value, int):
            return value
        try:
            when = parse_when(str(value))
        except UsageError:
            when = None
        if when is None or when.unit != "after start" or when.value == 0:
            self.fail(f"{value!r} is no length of time; write 100ms or 2.5s", param, ctx)
        return when.value


@dataclass(frozen=True)
class Push:
    """What is to be sent where; None: what the environment or OpenTelemetry's defaults say.

    Attributes:
        endpoint: the collector's address.
        begin: points from here on.
    """

    endpoint: str | None = None
    protocol: str | None = None
    begin: str | None = None
    interval_ns: int = 10**9
    module_depth: int = 2
    top_modules: int = 50

    def exporter(self) -> OtlpExporter:
        """What sends it.

        Raises:
            UsageError: an option is out of its range.
        """
        from memexport.exporters.otlp import OtlpExporter

        return OtlpExporter(
            self.endpoint,
            protocol=self.protocol,
            interval_ns=self.interval_ns,
            begin=self.begin,
            module_depth=self.module_depth,
            top_modules=self.top_modules,
        )


_OPTIONS = (
    click.option(
        "--endpoint",
        metavar="URL",
        help="The collector. Default: $OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318.",
    ),
    click.option(
        "--protocol",
        type=click.Choice(["grpc", "http/protobuf"]),
        help="Default: $OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf.",
    ),
    click.option(
        "--interval",
        "interval_ns",
        metavar="TIME",
        type=Duration(),
        default=_INTERVAL,
        show_default=True,
        help="The time between two points of a series (100ms).",
    ),
    click.option(
        "--module-depth",
        metavar="N",
        type=int,
        default=2,
        show_default=True,
        help="How much of a module's name counts: 2 adds layers.0.attn to layers.0.",
    ),
    click.option(
        "--top-modules",
        metavar="N",
        type=int,
        default=50,
        show_default=True,
        help="How many modules get series of their own; the rest are other.",
    ),
)


def push_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options that say where metrics go and how many."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def push(name: str, what: Push) -> None:
    """Send the metrics of the recording that INPUT names, and say what has become of them.

    Raises:
        UsageError: an option is out of its range, or the recording has no clock.
        InputError: the recording cannot be read.
        OutputError: not every point was accepted.
    """
    from memexport import pipeline

    exporter = what.exporter()
    try:
        with opened(name) as recording, progress_bar(f"Pushing {recording.name}") as progress:
            pipeline.run(recording, [exporter], progress)
            warn(recording.end().warnings)
    except KeyboardInterrupt:
        if exporter.report.resume_at is not None:
            say(f"{_told(exporter)}. The rest: --from {exporter.report.resume_at}")
        raise
    say(f"Pushed {recording.name}: {_told(exporter)}, in {exporter.report.requests} requests.")
    if exporter.report.message:
        say(f"memexport: the collector says: {exporter.report.message}")


def _told(exporter: OtlpExporter) -> str:
    report = exporter.report
    accepted = f"{report.accepted:,} accepted, {report.rejected:,} rejected"
    return f"{report.sent:,} points sent to {exporter.target}, {accepted}"


@click.command("push")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=InputFile(), callback=expanded)
@push_options
@click.option(
    "--from",
    "begin",
    metavar="WHEN",
    type=Whenever(),
    help="Send points from a time on: 12.5s after the start, or a time in UTC. A failed push says which.",
)
def command(inputs: tuple[str, ...], **options: Any) -> None:
    """Send the metrics of recordings to an OpenTelemetry collector, with the times at which they were so.

    Headers, certificates, compression and timeouts are those of the OTEL_EXPORTER_OTLP_* variables.
    """
    what = Push(**options)
    what.exporter()  # wrong usage is said before any input is opened
    sys.exit(for_each(inputs, lambda name: push(name, what)))
