"""How a Kineto trace is read: odd JSON, cut files, sorting in bounded memory."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import ALIVE, TORCH_2_13, call, memory, trace
from peak_memory import PEAK_BYTES

from memexport.errors import InputError
from memexport.model import EventBatch
from memexport.sources import _kineto_sort, _kineto_text, kineto
from memexport.sources._kineto_events import ROW
from memexport.sources._kineto_layout import layout_of, mended
from memexport.sources._kineto_sort import SortedRows
from memexport.sources.kineto import KinetoSource


@pytest.fixture
def opened(tmp_path):
    """Open a file with these bytes."""

    def open_(content):
        path = tmp_path / "trace.json"
        path.write_bytes(content)
        return KinetoSource(path)

    return open_


@pytest.fixture(params=[97, 1_000, 2**22], ids=lambda size: f"blocks of {size}")
def small_blocks(request, monkeypatch):
    """Let the text come in blocks of this size."""
    monkeypatch.setattr(_kineto_text, "BLOCK_BYTES", request.param)


def sizes(source):
    """What the memory events say, in order."""
    return EventBatch.concat(list(source.batches())).allocated_bytes.tolist()


ODD = [
    memory(1.0, 8, 8),
    {
        "ph": "X",
        "cat": "kernel",
        "name": '},\n  {"\\',
        "ts": 1,
        "dur": 2,
        "args": {"x": [{"a": 1}, {"b": []}]},
    },
    memory(2.0, 8, 16, tid='"traceEvents": ['),
    {"ph": "X", "cat": "kernel", "name": "k", "args": {"huge": 2**70, "grid": [1, 2], "more": {"ph": "M"}}},
    memory(3.0, 8, 24),
]


@pytest.mark.parametrize("indent", [None, 0, 1, 2, 4], ids=lambda indent: f"indent {indent}")
@pytest.mark.parametrize("separators", [None, (",", ":"), (" , ", " : ")], ids=["", "dense", "wide"])
@pytest.mark.usefixtures("small_blocks")
def test_the_layout_of_the_json_makes_no_difference(opened, indent, separators):
    whole = {"schemaVersion": 1, "traceEvents": ODD * 20, "traceName": "made", "ranks": [{"a": 1}, {"b": 2}]}
    source = opened(json.dumps(whole, indent=indent, separators=separators).encode())
    assert sizes(source) == sorted([8, 16, 24] * 20)
    assert not any("left out" in warning or "cut" in warning for warning in source.end().warnings)


@pytest.mark.usefixtures("small_blocks")
def test_a_key_that_only_looks_like_the_list_of_events_is_passed_over(opened):
    before = {"note": '"traceEvents": [', "nested": {"traceEvents": [{"ph": "i"}]}, "traceEvents": [ALIVE]}
    assert sizes(opened(json.dumps(before).encode())) == [512]


@pytest.mark.parametrize(
    "value",
    ["NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf", "[1, NaN, inf]", '{"a": -Infinity}'],
)
def test_what_is_no_number_in_json_is_taken_as_null(opened, value):
    text = trace(call("aten::mm", 0, 9, occupancy="@", note="info: NaN"), ALIVE)
    source = opened(text.replace(b'"@"', value.encode()))
    assert sizes(source) == [512, -1]
    assert len(source.end().warnings) == 1


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"caf\xc3\xa9", "café"),
        (b"broken \xff utf-8", "broken \ufffd utf-8"),
        (b"tab\tand\x00null", "tab and null"),
        (b"half \\ud83d pair", "half \ufffd pair"),
        (b"whole \\ud83d\\ude00 pair", "whole \U0001f600 pair"),
        (b"C:\\Users\\new", "C:\\Users\new"),
        (b'quote \\" and \\\\', 'quote " and \\'),
    ],
)
def test_a_name_may_hold_anything(opened, written, read):
    source = opened(trace(call("@name", 0, 9), ALIVE).replace(b"@name", written))
    batch = EventBatch.concat(list(source.batches()))
    assert source.tables.strings[int(batch.name[1])] == read


def test_a_very_long_name_is_cut(opened):
    source = opened(trace(call("x" * 100_000, 0, 9), ALIVE))
    batch = EventBatch.concat(list(source.batches()))
    assert len(source.tables.strings[int(batch.name[1])]) == 1_001


def test_of_a_key_that_occurs_twice_the_last_counts(opened):
    assert sizes(
        opened(trace(ALIVE).replace(b'"Total Allocated"', b'"Total Allocated": 1, "Total Allocated"'))
    ) == [512]


@pytest.mark.parametrize(
    "odd",
    [
        memory(1, "many"),
        memory(1, 1.5),
        memory(1, 2**63),
        memory(1, True),
        memory(2**70, 1),
        memory("now", 1),
        memory(1, 1, device=(0, None)),
        memory(1, 1, args={}),
        memory(1, 1, args=[1]),
        call("aten::mm", 2**60, 1),
        call("aten::mm", 1, -1),
        {"ph": "i", "name": "[memory]", "ts": 1},
        {"name": ["a"]},
        [1, 2],
    ],
)
def test_an_event_that_no_trace_has_is_left_out_and_counted(opened, odd):
    source = opened(trace(ALIVE, odd, ALIVE))
    assert sizes(source) == [512, 512]
    assert source.end().warnings[0] == "1 events are not what torch.profiler writes, and are left out"


@pytest.mark.parametrize("total", [-1, "none", 2**70, None])
def test_a_total_that_is_none_is_not_known(opened, total):
    odd = memory(2.0, 8, 8)
    odd["args"]["Total Allocated"] = total
    assert sizes(opened(trace(ALIVE, odd))) == [512, -1]


@pytest.mark.parametrize("member", [b"nonsense", b'{"a" 1}', b"[[[", b'"no end'])
def test_what_surrounds_the_events_may_be_unreadable(opened, member):
    source = opened(trace(ALIVE).replace(b'"made.json"', member))
    assert sizes(source) == [512]
    assert "what the file says of itself, beside its events, cannot be read" in source.end().warnings


@pytest.mark.parametrize(
    "members",
    [
        {"deviceProperties": 7, "distributedInfo": [], "host_name": {}, "with_stack": "yes"},
        {"deviceProperties": [{"id": "zero"}], "distributedInfo": {"rank": "first"}},
        {
            "deviceProperties": [{"id": 0, "totalGlobalMem": -1}],
            "distributedInfo": {"rank": -1, "world_size": 2**70},
        },
    ],
)
def test_members_of_other_types_are_not_known(opened, members):
    info = opened(trace(memory(1.0, 8, 8, device=(1, 0)), **members)).info
    assert (info.rank, info.world_size, info.host, info.devices[0].capacity_bytes) == (None, None, None, None)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_file_that_is_cut_gives_the_events_before_the_cut_and_a_warning(opened, packed):
    text = trace(*(memory(float(n), 8, 8 * n) for n in range(1, 2_000)))
    whole = gzip.compress(text) if packed else text
    source = opened(whole[: len(whole) // 2])
    found = sizes(source)
    assert 500 < len(found) < 1_500
    assert found == [8 * n for n in range(1, len(found) + 1)]
    assert source.end().warnings[0].startswith("the file is cut at byte ")


@pytest.mark.parametrize("left", [1, 3, 20, 30])
def test_a_file_that_is_cut_after_its_events_has_all_of_them_and_a_warning(opened, left):
    source = opened(trace(ALIVE)[:-left])
    assert sizes(source) == [512]
    assert source.end().warnings[0].startswith("the file is cut at byte ")


def test_events_without_a_comma_between_them_are_read(opened):
    assert sizes(opened(trace(ALIVE, ALIVE).replace(b"},\n  {", b"}\n  {"))) == [512, 512]


def test_damage_in_the_middle_is_refused_with_its_place(opened):
    text = trace(ALIVE, memory(2.0, 8, 520), ALIVE)
    place = text.index(b'"Bytes": 8')
    with pytest.raises(InputError, match=r"byte \d+: .*malformed") as caught:
        opened(text[:place] + b'"Bytes"; 8' + text[place + 10 :])
    assert abs(int(caught.value.where.split()[-1]) - place) < 500


def test_several_gzip_members_are_one_text_and_rubbish_after_them_is_none(opened):
    text = trace(ALIVE, memory(2.0, 8, 520))
    packed = gzip.compress(text[:200]) + gzip.compress(text[200:]) + b"\0\0\0rubbish"
    assert sizes(opened(packed)) == [512, 520]


def test_gzip_data_without_their_end_mark_are_read_with_a_warning(opened):
    source = opened(gzip.compress(trace(ALIVE))[:-4])
    assert sizes(source) == [512]
    assert source.end().warnings[0].startswith("the file is cut at byte ")


def test_gzip_data_with_a_wrong_checksum_is_refused(opened):
    packed = bytearray(gzip.compress(trace(ALIVE)))
    packed[-6] ^= 1
    with pytest.raises(InputError, match="gzip data is damaged"):
        opened(bytes(packed))


@pytest.mark.parametrize("run_rows", [1, 7, 100, 10_000])
def test_the_events_do_not_depend_on_how_many_rows_fit_into_memory(monkeypatch, run_rows):
    whole = EventBatch.concat(list(KinetoSource(TORCH_2_13).batches()))
    monkeypatch.setattr(kineto, "SortedRows", lambda: SortedRows(run_rows))
    monkeypatch.setattr(kineto, "_BLOCK", 10)
    monkeypatch.setattr(_kineto_sort, "_LEAST_LOADED", 2)
    source = KinetoSource(TORCH_2_13)
    for _ in range(2):
        parts = EventBatch.concat(list(source.batches()))
        for column, values in whole.columns().items():
            assert getattr(parts, column).tolist() == values.tolist()
    source.close()


@given(
    begins=st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=5),
    run_rows=st.integers(1, 40),
    block=st.integers(1, 20),
)
@settings(max_examples=100)
def test_sorting_in_runs_is_a_stable_sort(begins, run_rows, block):
    rows, parts, number = SortedRows(run_rows), [], 0
    for chunk in begins:
        part = np.zeros(len(chunk), ROW)
        part["begin"] = part["end"] = chunk
        part["bytes"] = np.arange(number, number + len(chunk))
        number += len(chunk)
        parts.append(part)
        rows.add(part)
    rows.finish()
    whole = np.concatenate(parts) if parts else np.empty(0, ROW)
    expected = whole[np.argsort(whole["begin"], kind="stable")]
    found = np.concatenate([np.empty(0, ROW), *rows.blocks(block)])
    assert found["bytes"].tolist() == expected["bytes"].tolist()
    rows.close()


def test_no_room_for_temporary_files_is_an_input_error(opened, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kineto, "SortedRows", lambda: SortedRows(1))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(InputError, match=r"no room for temporary files.*No space left") as caught:
        opened(trace(ALIVE))
    assert "TMPDIR" in caught.value.hint


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.text(), JSON_VALUES, max_size=4), max_size=6), st.booleans())
@settings(max_examples=200)
def test_the_layout_of_a_list_has_the_end_of_each_element_and_its_own(elements, ascii_only):
    parts = [json.dumps(element, ensure_ascii=ascii_only).encode("utf-8", "replace") for element in elements]
    text = b", ".join(parts)
    layout = layout_of(text + b'], "rest": [{}]}')
    ends = np.cumsum([len(part) + 2 for part in parts]) - 2
    assert layout.element_ends.tolist() == ends.tolist()
    assert layout.array_end == len(text)


@given(JSON_VALUES)
@settings(max_examples=200)
def test_mending_leaves_valid_json_as_it_is(value):
    text = json.dumps([value], allow_nan=False).encode()
    assert mended(text, layout_of(text).in_string) == text


def test_memory_does_not_grow_with_the_file(tmp_path):
    code = (
        f"{PEAK_BYTES}\n"
        "from memexport.sources.kineto import KinetoSource\n"
        "source = KinetoSource(sys.argv[1])\n"
        "print(sum(map(len, source.batches())), peak_bytes())"
    )
    times, peaks = random.Random(0), []
    for megabytes in (20, 80):
        event = json.dumps(call("torch/nn/modules/module.py(1): _call_impl", 1.0, 2.0, cat="python_function"))
        path = tmp_path / "large.json"
        with path.open("wb") as file:
            file.write(b'{"schemaVersion": 1, "traceEvents": [')
            filler = f"{event},\n".encode() * 200
            while file.tell() < megabytes * 10**6:
                file.write(filler + json.dumps(memory(times.random() * 1e6, 8)).encode() + b",\n")
            file.write(json.dumps(ALIVE).encode() + b"]}")
        printed = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, check=True, timeout=60
        )
        peaks.append(int(printed.stdout.split()[1]))
    assert peaks[1] < peaks[0] + 20 * 10**6
