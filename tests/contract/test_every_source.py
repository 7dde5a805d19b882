"""What holds for every format that memexport reads."""

from __future__ import annotations

import random

import pytest

from memexport import pipeline, registry
from memexport.errors import InputError
from memexport.model import COLUMNS, SCHEMA_VERSION, EventBatch

pytestmark = pytest.mark.parametrize("format_", registry.SOURCES, ids=lambda format_: format_.name)


@pytest.fixture
def path(format_, sample):
    """A file of the format."""
    return sample(format_.name)


@pytest.fixture
def source(format_, path):
    """The file, opened."""
    opened = format_.load()(path)
    yield opened
    opened.close()


def test_it_knows_its_own_files_by_their_first_bytes(format_, path, sample):
    sniff = format_.load().sniff
    assert sniff(path.read_bytes()[:65_536])
    for other in registry.SOURCES:
        if other != format_:
            assert not sniff(sample(other.name).read_bytes()[:65_536])


@pytest.mark.parametrize("head", [b"", b"\x00", b"{}", b"\x80", b"PK\x03\x04", b"\x1f\x8b"])
def test_it_does_not_claim_what_is_not_its_own(format_, head):
    assert not format_.load().sniff(head)


def test_it_says_its_format_by_the_name_in_the_registry(format_, source):
    assert source.info.format == format_.name
    assert source.info.schema_version == SCHEMA_VERSION


def test_memexport_open_finds_it(format_, path):
    with pipeline.open(path) as recording:
        assert recording.info.format == format_.name


def test_every_id_means_something_once_the_batch_is_there(source):
    for batch in source.batches():
        for column in ("name", "module", "thread"):
            assert getattr(batch, column).max(initial=0) < len(source.tables.strings)
        assert batch.stack.max(initial=0) < len(source.tables.stacks)
        assert batch.device.max(initial=-1) < len(source.info.devices)


def test_a_second_pass_gives_the_same_events(source):
    first, second = (EventBatch.concat(list(source.batches())) for _ in range(2))
    assert len(first) > 0
    for name in COLUMNS:
        assert getattr(first, name).tolist() == getattr(second, name).tolist()


def test_it_says_how_much_it_has_read(source):
    fractions = [source.fraction_read for _ in source.batches()]
    assert all(fraction is None or 0 <= fraction <= 1 for fraction in fractions)


def test_its_warnings_are_sentences(source):
    for _ in source.batches():
        pass
    assert all(isinstance(warning, str) and warning for warning in source.end().warnings)


def test_closing_it_twice_does_nothing(source):
    source.close()
    source.close()


def test_a_missing_file_is_an_input_error(format_, tmp_path):
    with pytest.raises(InputError, match="missing"):
        format_.load()(tmp_path / "missing")


def test_noise_after_its_first_bytes_is_an_input_error_or_a_warning(format_, path, tmp_path):
    head, damaged = path.read_bytes()[:200], tmp_path / "damaged"
    for seed in range(50):
        damaged.write_bytes(head[: seed * 4] + random.Random(seed).randbytes(500))
        try:
            with_noise = format_.load()(damaged)
            for _ in with_noise.batches():
                pass
        except InputError:
            continue
        assert with_noise.end().warnings
        with_noise.close()
