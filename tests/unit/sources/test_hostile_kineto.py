"""Files made to hurt whoever reads them as a Kineto trace: each is refused, soon, in one line."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import zlib

import pytest
from kineto_traces import ALIVE, call, memory, trace
from peak_memory import PEAK_BYTES

from memexport.errors import InputError
from memexport.sources.kineto import KinetoSource

HEAD = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n'
MIB = 2**20


def with_arguments(arguments):
    """A trace whose first event has these arguments, as text."""
    return trace(call("aten::mm", 0, 9, x="@"), ALIVE).replace(b'"@"', arguments)


def packed(block, times):
    """As many times this block, as gzip."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(block) for _ in range(times)), packer.flush()])


def events(count, event):
    """A trace of this many events, `event(n)` as text each; the last one is of memory."""
    return (
        HEAD + b",\n".join([*(event(n).encode() for n in range(count)), json.dumps(ALIVE).encode()]) + b"]}"
    )


def times(text):
    """A trace with this time."""
    return trace(memory(17, 8, 8)).replace(b'"ts": 17', b'"ts": ' + text)


POINT = '{{"ph":"i","name":"[memory]","tid":{},"ts":1,"args":{{"Bytes":1,"Device Type":1,"Device Id":{}}}}}'
CALL = '{{"ph":"X","cat":"cpu_op","name":"aten::mm","tid":{},"ts":{},"dur":{}}}'

CORPUS = {
    "a gzip bomb of spaces": lambda: packed(b" " * MIB, 60),
    "a gzip bomb of empty events": lambda: gzip.compress(HEAD, 0) + packed(b"{}," * MIB, 20),
    "gzip in gzip": lambda: gzip.compress(gzip.compress(trace(ALIVE))),
    "gzip's magic and nothing else": lambda: b"\x1f\x8b",
    "arrays in arrays": lambda: with_arguments(b"[" * 100_000 + b"]" * 100_000),
    "objects in objects": lambda: with_arguments(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "brackets that never close": lambda: HEAD + b"[" * 12 * MIB,
    "brackets in the members before": lambda: b'{"schemaVersion":' + b"[" * 20 * MIB,
    "a string that never ends": lambda: HEAD + b'{"name": "' + b"x" * 12 * MIB,
    "a string of backslashes": lambda: HEAD + b'{"name": "' + b"\\" * 12 * MIB,
    "ten million empty arrays": lambda: with_arguments(b"[" + b"[]," * 10**7 + b"[]]"),
    "a list of events after 20 MiB": lambda: (
        b'{"schemaVersion": 1, "x": "' + b"x" * 20 * MIB + b'",' + trace(ALIVE)[1:]
    ),
    "many keys that are not the list's": lambda: b"{" + b'"x": {"traceEvents": [' * 500_000,
    "a million empty events": lambda: HEAD + b"{},\n" * 10**6 + b"{}]}",
    "100 000 threads": lambda: events(100_000, lambda n: POINT.format(n, 0)),
    "10 000 devices": lambda: events(10_000, lambda n: POINT.format(1, n)),
    "names of 4 MB": lambda: events(17, lambda n: json.dumps(call("x" * 4_100_000 + str(n), n, 1))),
    "70 000 calls inside each other": lambda: events(70_000, lambda n: CALL.format(1, n, 10**6 - 2 * n)),
    "150 000 calls that never end": lambda: events(150_000, lambda n: CALL.format(n % 60_000, n, 10**6)),
    "a time of a gigantic exponent": lambda: times(b"1e999999999"),
    "a time of a million digits": lambda: times(b"9" * 10**6),
    "a negative time without end": lambda: times(b"-" + b"9" * 400),
    "no list of events": lambda: b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": {}}',
    "a list that is not one of events": lambda: HEAD + b"1, 2, 3]}",
    "no JSON from the first event on": lambda: HEAD + b"{not json at all}" * 1_000,
    "UTF-16": lambda: trace(ALIVE).decode().encode("utf-16"),
    "a pickle": lambda: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "zeros": lambda: HEAD + b"\0" * 10 * MIB,
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The files by what they are."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = {}
    for number, (name, content) in enumerate(CORPUS.items()):
        paths[name] = folder / f"{number}.json"
        paths[name].write_bytes(content())
    yield paths
    # pytest keeps the folders of three runs, and these files are large.
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", CORPUS)
def test_it_is_refused_within_two_seconds_with_a_reason_in_one_line(corpus, benchmark_seconds, name):
    def read():
        with pytest.raises(InputError) as caught:
            for _ in KinetoSource(corpus[name]).batches():
                pass
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 400

    assert benchmark_seconds(read) < 2


def test_none_of_them_takes_much_memory(corpus):
    code = (
        f"{PEAK_BYTES}\n"
        "from memexport.errors import InputError\n"
        "from memexport.sources.kineto import KinetoSource\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        for _ in KinetoSource(path).batches(): pass\n"
        "    except InputError: pass\n"
        "    print(peak_bytes(), path)\n"
    )
    command = [sys.executable, "-c", code, *corpus.values()]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout
    for line in printed.splitlines():
        assert int(line.split()[0]) < 700 * 10**6, line
