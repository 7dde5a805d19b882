"""Puts a snapshot together when its pickle has been read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from memexport.sources._snapshot import Annotation, Snapshot
from memexport.sources._snapshot_builder import MAX_DEVICES, TIME_LIMIT_US, Builder, whole
from memexport.sources._snapshot_collectors import SegmentRows, TraceRows, listed
from memexport.sources._snapshot_frames import count_ignored, count_unknown
from memexport.sources._snapshot_values import Misfit, Record, as_text, now, shown

# Of these, only the first three are what a snapshot is about.
_ROOT_KEYS: Final = {
    *("segments", "device_traces", "external_annotations"),
    *("allocator_settings", "trace_alloc_overflowed"),
}
_ANNOTATION_KEYS: Final = {"stage", "name", "device", "time_us"}


def assembled(root: Any, builder: Builder) -> Snapshot:
    """The snapshot that the pickle's value is.

    Raises:
        InputError: it is none.
        Refusal: it refers to the same entries again and again.
    """
    if type(root) is SegmentRows:
        return _snapshot(builder, (), Record())
    if type(root) is not Record:
        raise builder.wrong(None, f"is {shown(root)}, not a dict")
    if root.keys().isdisjoint(("segments", "device_traces")):
        raise builder.wrong(None, "has neither segments nor device_traces")
    try:
        _segments(builder, root.get("segments"))
        traces = [_trace(builder, number, trace) for number, trace in enumerate(_traces(root))]
        return _snapshot(builder, traces, root)
    except Misfit as misfit:
        raise builder.wrong(None, str(misfit)) from None


def _segments(builder: Builder, segments: Any) -> None:
    """Make rows of the segments if they are none yet."""
    if type(segments) is SegmentRows:
        return
    rows = SegmentRows(builder)
    for segment in listed(segments, "segments"):
        rows.take(segment)


def _traces(root: Record) -> list[Any] | tuple[Any, ...]:
    traces = listed(root.get("device_traces"), "device_traces")
    if len(traces) > MAX_DEVICES:
        raise Misfit(f"has traces of {len(traces)} devices")
    return traces


def _trace(builder: Builder, number: int, trace: Any) -> tuple[int, int]:
    """The first row of a device's trace, and the one after its last."""
    rows = now(trace)
    if type(rows) is not TraceRows:
        rows = TraceRows(builder, f"device_traces[{number}]")
        for entry in listed(trace, f"device_traces[{number}]"):
            rows.take(entry)
    elif rows.used:
        builder.repeat(rows.count)
    rows.used = True
    return rows.begin, rows.begin + rows.count


def _snapshot(builder: Builder, traces: Any, root: Record) -> Snapshot:
    for key in root.keys() - _ROOT_KEYS:
        count_ignored(builder.ignored, f"key {repr(key)[:60]} of the snapshot")
    settings = now(root.get("allocator_settings"))
    return Snapshot(
        tuple(builder.actions),
        tuple(builder.traces.slice(begin, end) for begin, end in traces),
        builder.segments.slice(0, builder.segments.count),
        builder.blocks.slice(0, builder.blocks.count),
        tuple(_annotations(builder, root.get("external_annotations"))),
        _settings(settings),
        _overflowed(root, settings),
        builder.ignored,
    )


def _annotations(builder: Builder, annotations: Any) -> list[Annotation]:
    read = []
    for number, annotation in enumerate(listed(annotations, "external_annotations")):
        try:
            read.append(_annotation(builder, now(annotation)))
        except Misfit as misfit:
            raise builder.wrong(f"external_annotations[{number}]", str(misfit)) from None
    return read


def _annotation(builder: Builder, annotation: Any) -> Annotation:
    if type(annotation) is not Record:
        raise Misfit(f"is {shown(annotation)}, not a dict")
    count_unknown(annotation, _ANNOTATION_KEYS, "an annotation", builder.ignored)
    name, stage = annotation.get("name"), annotation.get("stage")
    if type(name) is not str or type(stage) is not str:
        raise Misfit(f"has the name {shown(name)} and the stage {shown(stage)}")
    device = whole(annotation, "device", MAX_DEVICES, 0)
    return Annotation(name, stage, device, whole(annotation, "time_us", TIME_LIMIT_US, None))


def _settings(settings: Any) -> Mapping[str, str]:
    """As text; a snapshot without its settings is as good."""
    if type(settings) is not Record:
        return {}
    return {str(key): as_text(value) for key, value in settings.items()}


def _overflowed(root: Record, settings: Any) -> bool | None:
    """From where torch puts it, among the settings, or from the root; a value per device would do as well."""
    value = now(root.get("trace_alloc_overflowed"))
    if value is None and type(settings) is Record:
        value = now(settings.get("trace_alloc_overflowed"))
    if value is None:
        return None
    return any(value) if isinstance(value, list | tuple) else bool(value)
