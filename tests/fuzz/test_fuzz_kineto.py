"""A real Kineto trace, mutated: it is read, or refused with an InputError, and nothing else happens."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memexport.errors import InputError
from memexport.model import EventKind
from memexport.sources.kineto import KinetoSource

SAMPLE = Path(__file__).parents[1] / "data" / "kineto" / "torch-2.13-cpu.json.gz"
TOKENS = [
    b"", b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"NaN", b"-inf", b"null", b"1e400", b"-1",
    b"9" * 30, b"\xff", b"\x00", b'"\\ud800"', b'"ts": 1e17,', b'"dur": -5,', b'"Bytes": -1,',
    b'"traceEvents": [', b'"[memory]"', b'"cpu_op"', b'"python_function"', b'"nn.Module: X_0"',
    b'"ProfilerStep#3"', b"},\n  {",
]  # fmt: skip
PATIENT = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def shortened():
    """The sample with a few events of each kind."""
    whole = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    kept, seen = [], {}
    for event in whole["traceEvents"]:
        kind = event["ph"], event.get("cat"), event["name"].partition(":")[0]
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 2 or (event["name"] == "[memory]" and seen[kind] <= 12):
            kept.append(event)
    return json.dumps(whole | {"traceEvents": kept[:90]}, indent=2).encode()


SHORT = shortened()


def read(content):
    """Read it as a trace; what does not raise must be in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        KinetoSource.sniff(content[:65_536])
        try:
            source = KinetoSource(path)
            last = -(2**63)
            for batch in source.batches():
                ends = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
                assert (np.diff(ends) >= 0).all()
                assert int(ends[0]) >= last
                last = int(ends[-1])
                moves = (batch.kind == EventKind.ALLOCATION) | (batch.kind == EventKind.RELEASE)
                assert (batch.size_bytes[moves] >= 0).all()
                assert int(batch.name.max()) < len(source.tables.strings)
            source.end()
            source.close()
        except InputError as error:
            assert len(str(error).splitlines()) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(TOKENS), st.integers(0, 12)), min_size=1, max_size=6)
)
@PATIENT
def test_tokens_put_in_the_place_of_others(changes):
    content = bytearray(SHORT)
    for where, token, length in changes:
        place = int(where * len(content))
        content[place : place + length] = token
    read(bytes(content))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@PATIENT
def test_parts_moved_to_other_places(begin, end, to):
    first, last = sorted((int(begin * len(SHORT)), int(end * len(SHORT))))
    rest = SHORT[:first] + SHORT[last:]
    place = int(to * len(rest))
    read(rest[:place] + SHORT[first:last] + rest[place:])


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4), st.floats(0, 1))
@PATIENT
def test_packed_bytes_changed_and_cut(changes, stop):
    content = bytearray(gzip.compress(SHORT, mtime=0))
    for where, value in changes:
        content[min(int(where * len(content)), len(content) - 1)] = value
    read(bytes(content[: max(1, int(stop * len(content)))]))


@given(st.data())
@PATIENT
def test_values_of_other_types_and_sizes(data):
    whole = json.loads(SHORT)
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
        st.builds(list), st.builds(lambda: {"a": [1]}),
        st.sampled_from([2**31, 2**52, 2**63, 2**64, -(2**63), 1e300, 0]),
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 5))):
        event = data.draw(st.sampled_from(whole["traceEvents"]))
        args = event.get("args")
        target = args if isinstance(args, dict) and args and data.draw(st.booleans()) else event
        target[data.draw(st.sampled_from(sorted(target)))] = data.draw(values)
    read(json.dumps(whole, indent=data.draw(st.sampled_from([None, 2]))).encode())


@pytest.mark.parametrize("where", range(0, 100, 3))
def test_a_file_cut_anywhere_is_read_up_to_there(where):
    read(SHORT[: len(SHORT) * where // 100])
