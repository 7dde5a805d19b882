"""The restricted unpickler reads what a tracker writes, and nothing it reads can do anything."""

from __future__ import annotations

import contextlib
import datetime
import pickle
import struct
import tracemalloc
from collections import OrderedDict, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from legacy_pickles import LEGACY_CONV, pickled, stats

from memexport.sources.restricted_pickle import PickleRefusedError, loads

scalars = st.one_of(st.none(), st.integers(-(2**127), 2**127 - 1), st.floats(allow_nan=False), st.text())
keys = st.one_of(st.integers(-(2**127), 2**127 - 1), st.text())
values = st.recursive(
    st.one_of(scalars, st.tuples(scalars, scalars), st.lists(scalars, max_size=6).map(tuple)),
    lambda children: st.dictionaries(keys, children, max_size=4),
    max_leaves=12,
)
dicts = st.dictionaries(keys, values, max_size=6)


class Calls:
    """Something that runs a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call

    def __repr__(self):
        return f"a call of {self.call[0].__name__}{self.call[1]}"


class Persistent(pickle.Pickler):
    """Writes a persistent id for every string."""

    def persistent_id(self, obj):
        """Every string has one."""
        return obj if isinstance(obj, str) else None


@given(dicts, st.integers(2, 5))
def test_what_python_pickles_is_read_back_equal(value, protocol):
    assert loads(pickled(value, protocol)) == value


@given(dicts)
def test_a_defaultdict_comes_back_as_a_plain_dict(value):
    for written in (defaultdict(None, value), *([defaultdict(int, value)])):
        read = loads(pickled(written))
        assert read == value
        assert type(read) is dict


def test_what_torch_wrote_is_read_as_pickle_reads_it():
    data = LEGACY_CONV.read_bytes()
    assert loads(data) == pickle.loads(data)


@given(st.binary(max_size=200), st.integers(2, 5))
def test_noise_is_refused_and_raises_nothing_else(noise, protocol):
    for data in (noise, bytes([0x80, protocol]) + noise, bytes([0x80, protocol]) + noise + b"."):
        with contextlib.suppress(PickleRefusedError):
            assert isinstance(loads(data), dict)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_a_dict(position, byte):
    data = bytearray(LEGACY_CONV.read_bytes())
    data[position % len(data)] = byte
    with contextlib.suppress(PickleRefusedError):
        assert isinstance(loads(bytes(data)), dict)


def test_a_pickle_cut_anywhere_is_refused():
    data = LEGACY_CONV.read_bytes()
    for length in range(len(data)):
        with pytest.raises(PickleRefusedError):
            loads(data[:length])


def test_data_after_the_end_is_refused():
    with pytest.raises(PickleRefusedError, match="after the end"):
        loads(pickled({}) + b"x")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        Calls(open, "made_by_a_pickle", "w"),
        Calls(eval, "1 / 0"),
        Calls(defaultdict, list),
        Calls(defaultdict, int, {}),
        Calls(defaultdict, 7),
        Calls(defaultdict, None, None),
        Calls(int, "7"),
        OrderedDict(a=1),
        datetime.datetime(2026, 1, 1),
        print,
        int,
        defaultdict,
        defaultdict(list),
        [1],
        {1, 2},
        b"bytes",
        bytearray(b"x"),
        True,
        1.5j,
        ((1, 2), 3),
        (int,),
        2**200,
    ],
    ids=repr,
)
def test_any_other_object_is_refused_and_nothing_is_called(value, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PickleRefusedError):
        loads(pickled({"memories_allocated": value}, protocol))
    assert list(tmp_path.iterdir()) == []


def test_a_global_that_is_only_named_is_refused_by_name():
    with pytest.raises(PickleRefusedError, match=r"posix.system|nt.system"):
        loads(pickled({"a": __import__("os").system}))


def test_persistent_ids_are_refused(tmp_path):
    with (tmp_path / "file").open("wb") as stream:
        Persistent(stream).dump({"a": 1})
    with pytest.raises(PickleRefusedError, match="PERSID"):
        loads((tmp_path / "file").read_bytes())


@pytest.mark.parametrize(
    "opcode", [b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00"], ids=["EXT1", "EXT2", "EXT4"]
)
def test_extension_codes_are_refused(opcode):
    with pytest.raises(PickleRefusedError, match="EXT"):
        loads(b"\x80\x05" + opcode + b".")


@pytest.mark.parametrize("protocol", [0, 1, 6, 255])
def test_other_protocols_are_refused(protocol):
    with pytest.raises(PickleRefusedError, match="protocol"):
        loads(bytes([0x80, protocol]) + b"}.")


def test_keys_that_are_tuples_are_refused_before_they_are_hashed():
    nested = b")"
    for level in range(40):
        # Each tuple holds the one before it twice: hashing the last would take 2**40 steps.
        nested += b"\x94h" + bytes([level]) + b"\x86"
    with pytest.raises(PickleRefusedError, match="tuple"):
        loads(b"\x80\x05}" + nested + b"Ns.")


@pytest.mark.parametrize("key", [1.5, None, (1,), ()], ids=repr)
def test_keys_of_any_other_type_are_refused(key):
    with pytest.raises(PickleRefusedError, match="as key of a dict"):
        loads(pickled({key: 1}))


def test_a_dict_as_key_is_refused():
    with pytest.raises(PickleRefusedError, match="a dict as key of a dict"):
        loads(b"\x80\x05}}Ns.")


@pytest.mark.parametrize(
    "data",
    [
        b"\x8d" + struct.pack("<Q", 2**63) + b"x",
        b"X" + struct.pack("<I", 2**32 - 1) + b"x",
        b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x",
        b"\x8b" + struct.pack("<i", -1) + b"x",
        b"}r" + struct.pack("<I", 2**32 - 1),
        b"\x95" + struct.pack("<Q", 2**62),
        b"(" * 1_000_000,
        b"}" * 1_000_000,
        b"N" * 1_000_000,
        b"}" + b"\x94" * 1_000_000,
        b"}" + b"h\x00" * 1_000,
    ],
    ids=[
        "string",
        "unicode",
        "long",
        "negative",
        "memo",
        "frame",
        "marks",
        "dicts",
        "stack",
        "memoize",
        "get",
    ],
)
def test_absurd_lengths_and_floods_are_refused_within_little_memory(data):
    tracemalloc.start()
    try:
        with pytest.raises(PickleRefusedError) as error:
            loads(b"\x80\x05" + data + b".")
        assert error.value.position < 200_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_an_operation_cannot_reach_below_a_mark():
    with pytest.raises(PickleRefusedError):
        loads(b"\x80\x05}K\x01(K\x02su.")


def test_a_hundred_thousand_operators_take_less_than_two_seconds(benchmark_seconds):
    data = pickled(stats(*((f"layers.{n}.forward.add.Tensor_{n}", n / 8) for n in range(100_000))))
    assert benchmark_seconds(lambda: loads(data)) < 2
