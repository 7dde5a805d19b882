"""The model: columns of one length that nobody changes, tables whose ids keep their meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memexport.model import (
    COLUMNS,
    NULLS,
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    StackTable,
    StringTable,
)


def test_every_column_has_a_type_and_a_null_that_fits_it():
    assert COLUMNS.keys() == NULLS.keys()
    for name, dtype in COLUMNS.items():
        assert np.array(NULLS[name]).astype(dtype) == NULLS[name]


def test_columns_left_out_are_null():
    batch = EventBatch(kind=[EventKind.SAMPLE, EventKind.SAMPLE])
    for name in COLUMNS.keys() - {"kind"}:
        assert getattr(batch, name).tolist() == [NULLS[name]] * 2
        assert getattr(batch, name).dtype == COLUMNS[name]


def test_a_batch_cannot_be_changed():
    batch = EventBatch(kind=[1], size_bytes=[5])
    with pytest.raises(ValueError, match="read-only"):
        batch.size_bytes[0] = 6
    with pytest.raises(AttributeError):
        batch.size_bytes = np.array([6])


@pytest.mark.parametrize("columns", [{"size_bytes": [1, 2]}, {"size_bytes": [[1]]}, {"colour": [1]}])
def test_columns_of_another_length_shape_or_name_are_refused(columns):
    with pytest.raises(ValueError, match=r"colour|shape"):
        EventBatch(kind=[1], **columns)


def test_a_scalar_stands_for_every_event():
    assert EventBatch(kind=[1, 1, 1], device=2).device.tolist() == [2, 2, 2]


@given(st.lists(st.integers(1, 6)), st.integers(0, 20), st.integers(0, 20))
def test_select_and_concat_undo_each_other(kinds, first, second):
    batch = EventBatch(kind=kinds, time_unix_ns=np.arange(len(kinds)))
    cuts = sorted((first, second))
    pieces = [
        batch.select(slice(None, cuts[0])),
        batch.select(slice(*cuts)),
        batch.select(slice(cuts[1], None)),
    ]
    for name, column in EventBatch.concat(pieces).columns().items():
        assert column.tolist() == getattr(batch, name).tolist()


def test_no_batches_make_an_empty_batch():
    assert len(EventBatch.concat([])) == 0


@given(st.lists(st.text()))
def test_a_string_keeps_its_id(strings):
    table = StringTable()
    ids = [table.intern(string) for string in strings]
    assert [table.get(i) for i in ids] == strings
    assert [table.intern(string) for string in strings] == ids
    assert [table.find(string) for string in strings] == ids
    assert 0 not in ids
    assert table.since(1) == list(table)[1:]


def test_the_null_string_is_no_string():
    table = StringTable()
    assert (table.get(0), table.find("x"), len(table)) == (None, None, 1)
    assert table.get(table.intern("")) == ""


@given(st.lists(st.lists(st.integers(1, 5), max_size=6)))
def test_a_stack_keeps_its_id(stacks):
    table = StackTable()
    ids = [table.intern(stack) for stack in stacks]
    assert [table.frames(i) for i in ids] == stacks
    assert [table.intern(stack) for stack in stacks] == ids


def test_devices_are_called_what_torch_calls_them():
    assert [str(device) for device in (Device("cpu"), Device("cuda", 0), Device("xpu", 3))] == [
        "cpu",
        "cuda:0",
        "xpu:3",
    ]


@pytest.mark.parametrize(
    ("enum", "values"),
    [
        (EventKind, "OPERATOR=1 ALLOCATION=2 RELEASE=3 SAMPLE=4 SPAN=5 MARKER=6"),
        (Phase, "UNKNOWN=0 FORWARD=1 BACKWARD=2 RECOMPUTE=3 OPTIMIZER=4 OTHER=5"),
        (
            Category,
            "UNKNOWN=0 PARAMETER=1 BUFFER=2 GRADIENT=3 ACTIVATION=4 TEMPORARY=5 OPTIMIZER_STATE=6 INPUT=7"
            " OTHER=8 UNATTRIBUTED=9 SHARDED_PARAMETER=10 UNSHARDED_PARAMETER=11 SHARDED_GRADIENT=12"
            " UNSHARDED_GRADIENT=13 ALL_GATHER=14 REDUCE_SCATTER=15",
        ),
    ],
)
def test_numbers_that_stand_in_files_never_change(enum, values):
    assert " ".join(f"{member.name}={member.value}" for member in enum) == values
