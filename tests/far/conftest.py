"""What is tested against systems that are too large for every run: `make test-far`."""

from __future__ import annotations

from pathlib import Path

import pytest
from far_dataset import Dataset, write_dataset, write_without_rank


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Of five ranks."""
    return write_dataset(tmp_path_factory.mktemp("far"))


@pytest.fixture(scope="session")
def without_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of rank 3, and of none."""
    return write_without_rank(tmp_path_factory.mktemp("without_rank"))
