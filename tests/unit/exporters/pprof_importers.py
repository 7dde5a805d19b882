"""What the programs that read pprof profiles demand of one, each demand as their source has it.

Perfetto: src/trace_processor/importers/pprof/pprof_trace_reader.cc, and util/trace_type.cc of the first
versions that had it. Pyroscope: pkg/pprof/pprof.go (Normalize), pkg/validation/validate.go and limits.go (the
defaults), pkg/og/storage/tree (DefaultSampleTypeMapping).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_VARINT: Final = 0
_DELIMITED: Final = 2

_MESSAGES: Final = {1, 2, 3, 4, 5, 6, 11}
_NUMBERS: Final = {7, 8, 9, 10, 12, 14}
_COMMENT: Final = 13
_CORE: Final = {2, 3, 4, 5, 6, 7, 8}

_PYROSCOPE_UNITS: Final = {
    "alloc_objects": "count",
    "alloc_space": "bytes",
    "inuse_objects": "count",
    "inuse_space": "bytes",
}
_PYROSCOPE_BYTES: Final = 4 << 20
_PYROSCOPE_SAMPLES: Final = 16_000
_PYROSCOPE_LABELS: Final = 100
_PYROSCOPE_DEPTH: Final = 1000
_PYROSCOPE_SYMBOL: Final = 65_535


def perfetto_takes_it_for_pprof(content: bytes) -> bool:
    """IsPprofProfile, of `content` after gzip: a trace of Perfetto's own begins with the same byte.

    The first versions look at the first field only: a ValueType whose first field is a number. Later ones
    look at every field that is there in full; they may be shown only a beginning of the file.
    """
    if len(content) < 10:
        return False
    number, wire, first = next(_fields(content))
    if (number, wire) != (1, _DELIMITED) or first[0] not in (0x08, 0x10):
        return False
    has_core = False
    for number, wire, _ in _fields(content):
        has_core |= number in _CORE
        fits = (number in _MESSAGES and wire == _DELIMITED) or (number in _NUMBERS and wire == _VARINT)
        if not fits and not (number == _COMMENT and wire in (_VARINT, _DELIMITED)):
            return False
    return has_core


def assert_perfetto_shows_all(profile: Any) -> None:
    """ParseProfile leaves out, without a word, what does not meet one of these."""
    text = profile.string_table
    assert text, "an empty string table is an error"
    assert all(kind.type and kind.unit for kind in profile.sample_type), "else 'unknown' or 'count'"
    assert max(kind.type for kind in profile.sample_type) < len(text)
    assert all(mapping.id and mapping.filename for mapping in profile.mapping), "has_id(), has_filename()"
    functions = {f.id: text[f.name] for f in profile.function if f.id and f.name}
    assert len(functions) == len(profile.function), "has_id(), has_name()"
    frames = set()
    for location in profile.location:
        assert location.id and location.mapping_id in {mapping.id for mapping in profile.mapping}
        assert location.line[0].function_id in functions, "else its frame is '[unknown]'"
        frames.add((location.address, functions[location.line[0].function_id]))
    assert len(frames) == len(profile.location), (
        "frames of one address and name are one, with its file and line"
    )
    known = {location.id for location in profile.location}
    for sample in profile.sample:
        assert sample.location_id and set(sample.location_id) <= known, "else there is no callsite"
        assert len(sample.value) == len(profile.sample_type), "more are left out"


def assert_pyroscope_takes_all(profile: Any, size_bytes: int, *, has_clock: bool) -> None:
    """What Normalize reads without a look whether it is there or drops, and what ValidateProfile refuses."""
    text = profile.string_table
    assert text[0] == ""
    assert profile.HasField("period_type"), "its type is read without a look whether it is there"
    assert bool(profile.time_nanos) == has_clock, "0 becomes the time of the ingestion"
    assert [mapping.id for mapping in profile.mapping] == list(range(1, len(profile.mapping) + 1))
    assert all(location.mapping_id for location in profile.location), "Mapping[MappingId - 1]"
    assert all(location.id for location in profile.location), "location id is 0"
    assert all(function.id for function in profile.function), "function id is 0"
    assert {text[kind.type]: text[kind.unit] for kind in profile.sample_type} == _PYROSCOPE_UNITS
    assert not any("-" in text[kind.type] for kind in profile.sample_type), "sample type contains -"
    for sample in profile.sample:
        assert any(value > 0 for value in sample.value), "a sample without one is removed"
        assert all(label.key and label.str for label in sample.label), "labels that are no text are removed"
        assert len({label.key for label in sample.label}) == len(sample.label), "duplicate label names"
        assert len(sample.label) <= _PYROSCOPE_LABELS
        assert len(sample.location_id) <= _PYROSCOPE_DEPTH
    assert len(profile.sample) <= _PYROSCOPE_SAMPLES
    assert size_bytes <= _PYROSCOPE_BYTES
    assert max(len(one.encode()) for one in text) <= _PYROSCOPE_SYMBOL


def _fields(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and content of each field that is there in full; a number has none."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        value, at = _varint(content, at)
        number, wire = tag >> 3, tag & 7
        assert wire in (_VARINT, _DELIMITED)
        length = value if wire == _DELIMITED else 0
        if at + length > len(content):
            return
        yield number, wire, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content):
        value |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 128:
            return value, at
    return value, len(content) + 1
