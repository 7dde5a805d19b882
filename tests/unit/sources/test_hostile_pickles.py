"""Whatever a pickle asks for, it is refused: soon, in little memory, with a reason, and nothing happens."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from hostile_pickles import PROTO, bombs, forbidden_operations, hostile, nested_laughs, text
from peak_memory import PEAK_BYTES

from memexport import pipeline
from memexport.errors import InputError
from memexport.model import Tables
from memexport.sources._snapshot_pickle import read_snapshot

PEAK_OF_READING = f"""{PEAK_BYTES}
import contextlib, pathlib
from memexport.errors import InputError
from memexport.model import Tables
from memexport.sources._snapshot_pickle import read_snapshot
before = peak_bytes()
for path in sys.argv[1:]:
    with contextlib.suppress(InputError):
        read_snapshot(pathlib.Path(path), Tables())
        sys.exit(path)
print(peak_bytes() - before)
"""

NAMES = sorted(hostile("true"))


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that every payload would make."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "canary"


@pytest.fixture
def make(tmp_path, canary):
    """Writes the pickle of a name."""

    def write(name):
        path = tmp_path / "hostile.pickle"
        path.write_bytes(hostile("touch canary")[name])
        return path

    return write


def read(path):
    """As any command does."""
    with pipeline.open(path) as recording:
        for _ in recording.batches():
            pass


@pytest.mark.parametrize("name", NAMES)
def test_it_is_refused_soon_and_nothing_happens(name, make, canary, benchmark_seconds):
    path = make(name)
    for reader in (read, lambda path: read_snapshot(path, Tables())):

        def refuse(reader=reader):
            with pytest.raises(InputError) as caught:
                reader(path)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 500
            assert caught.value.exit_code == 3

        assert benchmark_seconds(refuse) < 2
    assert not canary.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_no_bomb_takes_much_memory(tmp_path):
    for number, data in enumerate(bombs().values()):
        (tmp_path / f"{number}.pickle").write_bytes(data)
    child = [sys.executable, "-c", PEAK_OF_READING, *map(str, sorted(tmp_path.iterdir()))]
    printed = subprocess.run(child, check=True, capture_output=True, text=True).stdout
    assert int(printed) < 100_000_000


@pytest.mark.parametrize("name", sorted(forbidden_operations().keys() - {"an unknown one"}))
def test_a_forbidden_operation_is_named_with_its_place(name, make):
    with pytest.raises(InputError, match=r"byte \d+: ") as caught:
        read_snapshot(make(f"operation {name}"), Tables())
    reasons = (name, "os.system", "a call of")
    assert any(reason in str(caught.value) for reason in reasons)


def test_the_payloads_would_have_worked(make, canary):
    pickle.loads(make("os.system alone, protocol 4").read_bytes())
    assert canary.exists()


def test_shared_lists_that_nobody_follows_are_ignored(tmp_path):
    path = tmp_path / "laughs.pickle"
    path.write_bytes(PROTO + b"}(" + text("x") + nested_laughs(30) + text("device_traces") + b"]u.")
    assert read_snapshot(path, Tables()).ignored == {"key 'x' of the snapshot": 1}
