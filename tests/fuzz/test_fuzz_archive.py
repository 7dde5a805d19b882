"""A real archive, mutated: it is read, or refused with an InputError, and nothing else happens."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memexport
from memexport.archive.framing import RecordReader, pack_record
from memexport.model import RecordingEnd

SAMPLE = Path(__file__).parents[1] / "data" / "archives" / "1.0.memx"
CONTENT = SAMPLE.read_bytes()
PATIENT = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
EDIT = st.tuples(
    st.integers(0, 2**20), st.sampled_from(["flip", "cut", "repeat", "insert"]), st.binary(max_size=12)
)


def bodies() -> list[bytes]:
    """The intact records of the sample."""
    with SAMPLE.open("rb", buffering=0) as stream:
        return [frame.body for frame in RecordReader(SAMPLE, stream, len(CONTENT))]


BODIES = bodies()


def edited(content: bytes, edit: tuple[int, str, bytes]) -> bytes:
    """The content with one change."""
    place, how, extra = edit
    place %= max(1, len(content))
    before, after = content[:place], content[place:]
    match how:
        case "flip":
            return (
                before + bytes([after[0] ^ (extra[0] if extra else 1) or 1]) + after[1:] if after else before
            )
        case "cut":
            return before + after[len(extra) or 1 :]
        case "repeat":
            return before + after[:40] + after
        case _:
            return before + extra + after


def read(content: bytes) -> None:
    """Read it and sum it up; what does not raise must be events whose ids have a meaning."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.memx"
        path.write_bytes(content)
        try:
            with memexport.open(path) as recording:
                batches = list(recording.batches())
                strings, stacks = len(recording.tables.strings), len(recording.tables.stacks)
                assert isinstance(recording.end(), RecordingEnd)
                for batch in batches:
                    for name in ("name", "module", "thread", "inputs"):
                        assert int(getattr(batch, name).max(initial=0)) < strings
                    assert int(batch.stack.max(initial=0)) < stacks
                recording.summary().to_dict()
        except memexport.InputError as error:
            assert "\n" not in str(error)


@PATIENT
@given(st.lists(EDIT, min_size=1, max_size=4))
def test_a_file_with_changed_bytes(edits: list[tuple[int, str, bytes]]) -> None:
    """Most are damage that the checksums see."""
    content = CONTENT
    for edit in edits:
        content = edited(content, edit)
    read(content)


@PATIENT
@given(st.integers(0, len(BODIES) - 1), st.lists(EDIT, min_size=1, max_size=4))
def test_a_record_with_changed_bytes_and_the_right_checksum(
    number: int, edits: list[tuple[int, str, bytes]]
) -> None:
    """What no checksum sees: someone wrote it so."""
    body = BODIES[number]
    for edit in edits:
        body = edited(body, edit)
    read(b"".join(map(pack_record, (*BODIES[:number], body, *BODIES[number + 1 :]))))


@PATIENT
@given(st.permutations(range(len(BODIES))), st.integers(1, len(BODIES)))
def test_records_in_another_order(order: list[int], count: int) -> None:
    """With some of them missing."""
    read(b"".join(pack_record(BODIES[number]) for number in order[:count]))
