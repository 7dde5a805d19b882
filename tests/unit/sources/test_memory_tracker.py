"""A legacy MemoryTracker pickle: what is in it, what is made of it, and what is refused."""

from __future__ import annotations

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from legacy_pickles import LEGACY_CONV, pickled, stats

from memexport.errors import InputError
from memexport.model import UNKNOWN_SIZE, EventBatch, EventKind, Phase
from memexport.sources._memory_tracker_events import parse_name
from memexport.sources.memory_tracker import MemoryTrackerSource

MIB = 1024 * 1024


@pytest.fixture
def source_of(tmp_path):
    """Open a pickle of these stats."""

    def open_(value, **options):
        path = tmp_path / "stats.pickle"
        path.write_bytes(value if isinstance(value, bytes) else pickled(value, **options))
        return MemoryTrackerSource(path)

    return open_


def rows(source, *columns):
    """The events' columns, strings looked up."""
    batch = EventBatch.concat(list(source.batches()))
    strings = source.tables.strings
    found = [
        [strings.get(i) for i in getattr(batch, c).tolist()]
        if c in ("name", "module")
        else getattr(batch, c).tolist()
        for c in columns
    ]
    return list(zip(*found, strict=True))


def test_the_sample_has_the_operators_values_and_markers_that_torch_saw():
    expected = json.loads(LEGACY_CONV.with_suffix(".pickle.expected.json").read_text())
    source = MemoryTrackerSource(LEGACY_CONV)
    events = rows(source, "kind", "name", "allocated_bytes", "reserved_bytes", "time_unix_ns")
    operators = [event for event in events if event[0] == EventKind.OPERATOR]
    assert len(operators) == expected["ops"]
    assert [name for _, name, *_ in operators] == [
        "aten." + name.split(".forward.")[1].rpartition("_")[0] for name in expected["names"]
    ]
    assert operators[0][2] == round(expected["first"][1] * MIB)
    assert operators[-1][2] == round(expected["last"][1] * MIB)
    assert max(event[2] for event in operators) == round(expected["peak_allocated_mb"] * MIB)
    assert max(event[3] for event in operators) == round(expected["peak_reserved_mb"] * MIB)
    assert source.end().alloc_retries == expected["retries"]
    assert [event[4] for event in events] == [index * 1_000 for index in range(len(events))]


def test_the_samples_operators_change_memory_as_torchs_own_summary_says():
    expected = json.loads(LEGACY_CONV.with_suffix(".pickle.expected.json").read_text())
    source = MemoryTrackerSource(LEGACY_CONV)
    sizes = [size for kind, size in rows(source, "kind", "size_bytes") if kind == EventKind.OPERATOR]
    assert sizes[0] == UNKNOWN_SIZE
    by_name = dict(zip(expected["names"], sizes, strict=True))
    for name, mib in expected["top"]:
        assert by_name[name] == round(mib * MIB)


def test_the_samples_markers_stand_where_forward_begins_and_ends():
    source = MemoryTrackerSource(LEGACY_CONV)
    events = rows(source, "kind", "name", "phase")
    assert events[0][:2] == (EventKind.MARKER, "fw_start")
    assert events[10][:2] == (EventKind.MARKER, "fw_bw_boundary")
    assert {phase for kind, _, phase in events[:10] if kind == EventKind.OPERATOR} == {Phase.FORWARD}
    assert {phase for kind, _, phase in events[10:] if kind == EventKind.OPERATOR} == {Phase.BACKWARD}


def test_the_module_is_given_in_forward_only_and_a_warning_says_so():
    source = MemoryTrackerSource(LEGACY_CONV)
    modules = [m for kind, m in rows(source, "kind", "module") if kind == EventKind.OPERATOR]
    assert modules[:9] == ["0", "1", "1", "1", "2", "3", "4", "5", "5"]
    assert set(modules[9:]) == {None}
    assert source.end().warnings == (
        "the module of 17 operators after forward is not known: the format lacks it",
    )


def test_nothing_is_said_that_the_format_does_not_know():
    source = MemoryTrackerSource(LEGACY_CONV)
    for row in rows(source, "duration_ns", "thread", "stack", "step", "rank", "address", "category"):
        assert row == (-1, 0, 0, -1, -1, 0, 0)
    assert (source.info.clock, source.info.start_time_unix_ns, source.info.producer_version) == (
        "index",
        None,
        None,
    )


def test_a_pass_can_be_repeated_and_says_how_far_it_is(source_of):
    source = source_of(stats(*((f".add.Tensor_{n}", 1.0) for n in range(20_000))))
    fractions = [source.fraction_read for _ in source.batches()]
    assert fractions == [8_192 / 20_000, 16_384 / 20_000, 1.0]
    assert sum(len(batch) for batch in source.batches()) == 20_000
    source.close()
    source.close()


def test_an_empty_recording_is_one(source_of):
    source = source_of(stats())
    assert list(source.batches()) == []
    assert source.fraction_read == 1.0


@pytest.mark.parametrize(
    ("name", "operator", "module"),
    [
        ("0.forward.convolution.default_0", "aten.convolution.default", "0"),
        ("layers.0.self_attn.forward.transpose.int_12", "aten.transpose.int", "layers.0.self_attn"),
        ("a.forward.forward.add_.Tensor_3", "aten.add_.Tensor", "a.forward"),
        ("m_1.forward._to_copy.default_0", "aten._to_copy.default", "m_1"),
        (".forward.add.Tensor_3", "aten.add.Tensor", ""),
        (".randn.default_0", "aten.randn.default", None),
        ("0.forward.flex_attention_3", "flex_attention", "0"),
        (".flex_attention_3", "flex_attention", None),
        ("nonsense", "nonsense", None),
        ("a.b.c.d", "a.b.c.d", None),
        ("a.b.c.d_1", "a.b.c.d_1", None),
        ("", "", None),
    ],
)
def test_names_are_taken_apart_from_the_right(name, operator, module):
    assert parse_name(name) == (operator, module)


@given(st.text())
def test_any_name_can_be_taken_apart(name):
    assert parse_name(name).operator or not name.strip("._0123456789")


def test_the_root_module_has_no_name_and_a_warning_says_so(source_of):
    source = source_of(stats((".forward.add.Tensor_0", 1.0), markers={"fw_start": 0}))
    assert rows(source, "kind", "module")[1] == (EventKind.OPERATOR, None)
    assert "1 operators of the root module" in source.end().warnings[0]


def test_operators_of_earlier_iterations_have_neither_phase_nor_module(source_of):
    operators = [(f"0.forward.add.Tensor_{n}", 1.0) for n in range(4)]
    source = source_of(stats(*operators, markers={"fw_start": 2, "fw_bw_boundary": 3}))
    assert rows(source, "kind", "phase", "module") == [
        (EventKind.OPERATOR, Phase.UNKNOWN, None),
        (EventKind.OPERATOR, Phase.UNKNOWN, None),
        (EventKind.MARKER, Phase.UNKNOWN, None),
        (EventKind.OPERATOR, Phase.FORWARD, "0"),
        (EventKind.MARKER, Phase.UNKNOWN, None),
        (EventKind.OPERATOR, Phase.BACKWARD, None),
    ]
    assert any("2 operators before the last forward" in warning for warning in source.end().warnings)


def test_a_forward_that_began_after_the_boundary_ends_backward(source_of):
    operators = [(f"0.forward.add.Tensor_{n}", 1.0) for n in range(3)]
    source = source_of(stats(*operators, markers={"fw_start": 2, "fw_bw_boundary": 1}))
    phases = [phase for kind, phase in rows(source, "kind", "phase") if kind == EventKind.OPERATOR]
    assert phases == [Phase.UNKNOWN, Phase.BACKWARD, Phase.FORWARD]


def test_a_marker_may_stand_after_the_last_operator(source_of):
    source = source_of(stats((".add.Tensor_0", 1.0), markers={"fw_bw_boundary": 1}))
    assert [kind for (kind,) in rows(source, "kind")] == [EventKind.OPERATOR, EventKind.MARKER]


def test_the_key_that_newer_versions_of_torch_add_is_accepted(source_of):
    assert source_of(stats(op_index=0)).end().warnings == ()


def test_an_unknown_key_is_ignored_with_a_warning(source_of):
    assert "colour" in source_of(stats(colour=1)).end().warnings[0]


@pytest.mark.parametrize("mib", [math.nan, math.inf, -1.0, -0.5, 1e300, 2**60])
def test_an_impossible_amount_of_memory_is_refused_with_its_place(source_of, mib):
    wrong = stats((".a.b_0", 1.0))
    wrong["memories_active"][0] = (".a.b_0", mib)
    with pytest.raises(InputError, match=r"memories_active\[0\].*MiB"):
        source_of(wrong)


WRONG_SHAPES = {
    "no allocated": {k: v for k, v in stats().items() if k != "memories_allocated"},
    "no markers": {k: v for k, v in stats().items() if k != "markers"},
    "no retries": {k: v for k, v in stats().items() if k != "num_alloc_retries"},
    "counters are a tuple": stats(memories_active=(1, 2)),
    "a missing index": stats(memories_allocated={1: ("a", 1.0)}),
    "a key that is text": stats(memories_allocated={"0": ("a", 1.0)}),
    "an entry that is a number": stats(memories_allocated={0: 1.0}),
    "an entry of three": stats(memories_allocated={0: ("a", 1.0, 2.0)}),
    "a name that is a number": stats(memories_allocated={0: (1, 1.0)}),
    "a value that is text": stats(memories_allocated={0: ("a", "1.0")}),
    "counters of different lengths": stats(memories_allocated={0: ("a", 1.0)}),
    "counters of different operators": stats(("a", 1.0), memories_active={0: ("b", 1.0)}),
    "a marker that is text": stats(markers={"fw_start": "0"}),
    "a marker without a name": stats(markers={1: 0}),
    "a marker beyond the end": stats(markers={"fw_start": 1}),
    "a negative marker": stats(markers={"fw_start": -1}),
    "markers that are a number": stats(markers=1),
    "retries that are text": stats(num_alloc_retries="3"),
    "negative retries": stats(num_alloc_retries=-3),
}


@pytest.mark.parametrize("shape", WRONG_SHAPES)
def test_a_dict_of_the_wrong_shape_is_refused(source_of, shape):
    with pytest.raises(InputError, match=r"stats\.pickle"):
        source_of(WRONG_SHAPES[shape])


def test_a_dict_that_holds_itself_is_refused(source_of):
    looped = stats()
    looped["memories_allocated"][0] = looped
    with pytest.raises(InputError, match=r"memories_allocated\[0\]"):
        source_of(looped)


def test_a_missing_index_is_named(source_of):
    wrong = stats(("a", 1.0), ("b", 1.0), ("c", 1.0))
    del wrong["memories_allocated"][1]
    with pytest.raises(InputError, match=r"memories_allocated\[1\]"):
        source_of(wrong)


@given(st.binary(max_size=300))
def test_noise_raises_an_input_error_and_nothing_else(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "noise.pickle"
    path.write_bytes(b"\x80\x05" + noise)
    with pytest.raises(InputError):
        MemoryTrackerSource(path)


def test_a_file_that_cannot_be_read_raises_an_input_error(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            MemoryTrackerSource(path)


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path):
    path = tmp_path / "huge.pickle"
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), 2**31)
    with pytest.raises(InputError, match="more than"):
        MemoryTrackerSource(path)
