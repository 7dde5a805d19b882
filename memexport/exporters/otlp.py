"""Sends a recording's metrics to an OpenTelemetry collector, with the times at which they were so."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from memexport.analysis.when import When, parse_when
from memexport.errors import OutputError, UsageError
from memexport.exporters._otel_fold import FoldOptions
from memexport.exporters._otlp_frames import INTERVAL_NS, Frame, Frames, Moment
from memexport.exporters._otlp_resource import Facts, recorded_facts
from memexport.exporters.destination import Destination
from memexport.exporters.remote_destination import RemoteDestination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

if TYPE_CHECKING:
    from memexport.exporters._otlp_protobuf import RequestEncoder
    from memexport.exporters._otlp_send import Sender

MAX_REQUEST_BYTES: Final = 4 * 2**20 - 2**16
"""Collectors take requests of up to 4 MiB."""

_WANTED_REQUEST_BYTES: Final = 2**20
_FIRST_GUESS: Final = 200
"""Bytes a point takes, until the first request has shown it."""


@dataclass(frozen=True)
class Report:
    """What has become of a recording's points.

    Attributes:
        sent: points in requests that the collector was asked to take.
        accepted: those that it took.
        rejected: those that it did not want; the rest was lost on the way.
        requests: how many arrived.
        accepted_until_ns: all points up to this time, and from the first that was to be sent on, have been
            answered for; None before the first.
        message: the last thing that the collector had to say about points.
    """

    sent: int = 0
    accepted: int = 0
    rejected: int = 0
    requests: int = 0
    accepted_until_ns: int | None = None
    message: str = ""

    @property
    def resume_at(self) -> str | None:
        """What `--from` must be for the points that are left; None: from the beginning."""
        if self.accepted_until_ns is None:
            return None
        seconds, nanoseconds = divmod(self.accepted_until_ns + 1, 10**9)
        return f"@{seconds}.{nanoseconds:09d}"


class OtlpExporter:
    """Sends the metrics of every interval, in requests of less than 4 MiB.

    What the collector cannot take now is sent again for as long as the OTLP exporter's timeout allows.
    Points that it does not want are counted, and the rest is sent nevertheless.

    Args:
        destination: the collector's address: a URL, or the destination that stands for one. None: what
            `OTEL_EXPORTER_OTLP_ENDPOINT` says, or this machine.
        protocol: "grpc" or "http/protobuf"; None: what `OTEL_EXPORTER_OTLP_PROTOCOL` says, or HTTP.
        interval_ns: the time between two points of a series.
        begin: send points from here on: a time as `memexport.Selection` takes it. The whole recording is
            read nevertheless, so that every point is what it would have been in one go.
        module_depth: components of a module's name that count.
        top_modules: modules with series of their own, at most 50; the rest are "other".

    Attributes:
        report: what has become of the points so far.
        target: the collector's address, once it is known.

    Raises:
        UsageError: an option is out of its range, or OpenTelemetry is not installed.
    """

    def __init__(
        self,
        destination: Destination | str | None = None,
        *,
        protocol: str | None = None,
        interval_ns: int = INTERVAL_NS,
        begin: str | None = None,
        module_depth: int = 2,
        top_modules: int = 50,
    ) -> None:
        self._endpoint = _endpoint(destination)
        self._protocol = protocol
        self._interval_ns = interval_ns
        self._begin = None if begin is None else _time(begin)
        self._options = FoldOptions(module_depth, top_modules)
        self._sender: Sender | None = None
        self._encoder: RequestEncoder | None = None
        self._waiting: list[Moment] = []
        self._waiting_points = 0
        self._bytes_per_point = float(_FIRST_GUESS)
        self.report = Report()
        self.target = self._endpoint or ""

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Make ready to send; nothing is sent yet.

        Raises:
            UsageError: the recording has no clock, or the address is none.
        """
        try:
            from memexport.exporters._otlp_send import sender_to
        except ModuleNotFoundError as error:
            raise missing(error) from error
        self._info = info
        self._frames = Frames(info, tables, self._options, self._interval_ns)
        self._sender = sender_to(self._endpoint, self._protocol)
        self.target = self._sender.target

    def write(self, batch: EventBatch) -> None:
        """Send what is worth a request.

        Raises:
            OutputError: it did not arrive; the message says what did.
        """
        self._take(self._frames.add(batch))

    def end(self, end: RecordingEnd) -> None:
        """Send the rest.

        Raises:
            OutputError: it did not arrive, or the collector did not want all points.
        """
        self._take(self._frames.end(end))
        self._send_waiting()
        self.abort()
        if self.report.rejected:
            what = f"the collector rejected {self.report.rejected:,} of {self.report.sent:,} points"
            raise OutputError(self.target, None, f"{what}: {self.report.message}".rstrip(": "))

    def abort(self) -> None:
        """Close the connection."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _take(self, moments: Iterable[Moment]) -> None:
        for moment in moments:
            points = _points(moment)
            if points and moment[0].time_unix_ns >= self._first_ns():
                if (self._waiting_points + points) * self._bytes_per_point > _WANTED_REQUEST_BYTES:
                    self._send_waiting()
                self._waiting.append(moment)
                self._waiting_points += points

    def _first_ns(self) -> int:
        if self._begin is None:
            return 0
        since_start = self._begin.unit == "after start"
        return self._begin.value + (self._frames.begin_ns if since_start else 0)

    def _send_waiting(self) -> None:
        moments, self._waiting, self._waiting_points = self._waiting, [], 0
        if moments:
            self._send_moments(moments)

    def _send_moments(self, moments: list[Moment]) -> None:
        """Send them in one request, or in as many as they need."""
        frames = [frame for moment in moments for frame in moment]
        request = self._encoded(frames)
        if len(request) <= MAX_REQUEST_BYTES:
            self._send(request, _points(frames))
        elif len(moments) > 1:
            middle = len(moments) // 2
            self._send_moments(moments[:middle])
            self._send_moments(moments[middle:])
        else:
            for frame in frames:
                self._send(self._encoded([frame]), frame.points)
        self.report = replace(self.report, accepted_until_ns=frames[-1].time_unix_ns)

    def _encoded(self, frames: Iterable[Frame]) -> bytes:
        if self._encoder is None:
            from memexport.exporters._otlp_protobuf import RequestEncoder

            self._encoder = RequestEncoder(self._frames.begin_ns, self._resource)
        return self._encoder.encode(frames)

    def _resource(self, rank: int) -> Facts:
        from memexport.exporters._otel_provider import over_environment

        return over_environment(recorded_facts(self._info, rank))

    def _send(self, request: bytes, points: int) -> None:
        if self._sender is None:
            raise OutputError(self.target, None, "is not open")
        self._bytes_per_point = len(request) / points
        answer = self._sender.send(request)
        before = self.report
        if not answer.arrived:
            self.report = replace(before, sent=before.sent + points)
            raise _failure(self.target, self.report, answer.message)
        rejected = min(answer.rejected, points)
        self.report = replace(
            before,
            sent=before.sent + points,
            accepted=before.accepted + points - rejected,
            rejected=before.rejected + rejected,
            requests=before.requests + 1,
            message=answer.message or before.message,
        )


def missing(error: ModuleNotFoundError) -> UsageError:
    """OpenTelemetry, or a part of it, is not installed."""
    return UsageError(f"{error.name} is not installed", hint="pip install 'memexport[otlp]'")


def _endpoint(destination: Destination | str | None) -> str | None:
    if destination is None or isinstance(destination, str):
        return destination
    if isinstance(destination, RemoteDestination):
        return destination.url
    raise UsageError(
        f"metrics are sent to a collector, not written to {str(destination.path)!r}",
        hint="http://localhost:4318, or a file: --to otlp-file",
    )


def _time(begin: str) -> When:
    when = parse_when(begin)
    if when.unit == "event":
        raise UsageError(f"points have times, not indices like {begin}", hint="12.5s after the start")
    return when


def _points(frames: Iterable[Frame]) -> int:
    return sum(frame.points for frame in frames)


def _failure(target: str, report: Report, why: str) -> OutputError:
    if report.accepted_until_ns is None or not report.accepted:
        return OutputError(target, None, f"no points were accepted: {why}", hint="is a collector there?")
    until = datetime.datetime.fromtimestamp(report.accepted_until_ns / 1e9, datetime.UTC)
    where = f"after {report.accepted:,} accepted points, up to {until:%Y-%m-%dT%H:%M:%S.%fZ}"
    hint = f"send the rest with the same options and --from {report.resume_at}"
    return OutputError(target, where, why, hint=hint)
