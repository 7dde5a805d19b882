"""What the record of an accelerator's allocator adds to the rows of a device; the record is made up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from memexport.model import Category, Tables
from memexport.tracker import exact_device, rows
from memexport.tracker.allocators import ALLOCATOR_PEAK
from memexport.tracker.exact_device import DeviceJoin
from memexport.tracker.rows import DEVICE_UNIT, LABEL_UNIT, ROW_DTYPE, Labels

GPU = DEVICE_UNIT
NAMES = {
    rows.OPERATOR: "operator",
    rows.ALLOCATION: "allocation",
    rows.RELEASE: "release",
    rows.SAMPLE: "sample",
    rows.COUNTERS: "counters",
}
Row = tuple[int, int, int, int, int]


class Case:
    """Rows of one context, and what comes out of them."""

    def __init__(self) -> None:
        self.labels = Labels(Tables())
        self.context = self.labels.context("layer", 1, "main")
        self.join = DeviceJoin(self.labels, itertools.count(100).__next__)

    def row(self, kind: int, time: int, first: int = 0, second: int = 0, name: str = "aten.mm") -> Row:
        category = Category.UNATTRIBUTED if kind == rows.ALLOCATION else Category.UNKNOWN
        return self.labels.code(kind, name, category) + GPU, self.context, time, first, second

    def operator(self, began: int, ended: int, allocated: int) -> list[Row]:
        """One, and the reading after it."""
        return [self.row(rows.OPERATOR, began, ended), (rows.COUNTERS + GPU, self.context, *[allocated] * 3)]

    def joined(
        self, logged: list[Row], told: list[tuple[int, int]]
    ) -> list[tuple[str, str | None, int, int]]:
        """Kind, name, time (of counters: what is allocated) and size of each row; `told` are (time, size)."""
        events = [(rows.MEMORY + GPU, 0, time, size, 0) for time, size in told]
        raw = self.join.join(np.array(logged, ROW_DTYPE), np.array(events, ROW_DTYPE))
        return [self._plain(row) for row in raw.tolist()]

    def _plain(self, row: Row) -> tuple[str, str | None, int, int]:
        code, _, time, first, _ = row
        kind = code % DEVICE_UNIT
        name = None
        if kind != rows.COUNTERS:
            name = self.labels.tables.strings.get(self.labels.names[code // LABEL_UNIT])
        return NAMES[kind], name, time, first if kind in (rows.ALLOCATION, rows.RELEASE) else 0


@pytest.fixture
def case() -> Case:
    return Case()


def test_what_an_operator_gives_back_is_allocated_and_released_in_it(case: Case) -> None:
    found = case.joined(case.operator(10, 20, 1000), [(12, 300), (15, -300)])
    assert found == [
        ("allocation", "aten.mm", 12, 300),
        ("counters", None, 1300, 0),
        ("release", "aten.mm", 15, 300),
        ("counters", None, 1000, 0),
        ("operator", "aten.mm", 10, 0),
        ("counters", None, 1000, 0),
    ]


def test_what_an_operator_returns_is_allocated_when_it_was_given(case: Case) -> None:
    logged = [case.row(rows.ALLOCATION, 20, 900, 7), *case.operator(10, 20, 1000)]
    found = case.joined(logged, [(11, 2048), (13, 1024), (15, -2048)])
    assert [row for row in found if row[0] != "counters"] == [
        ("allocation", "aten.mm", 11, 2048),
        ("allocation", "aten.mm", 13, 900),
        ("release", "aten.mm", 15, 2048),
        ("operator", "aten.mm", 10, 0),
    ]
    assert [row[2] for row in found if row[0] == "counters"] == [2024, 3048, 1000, 1000]


def test_a_moment_of_which_no_storage_is_known_is_a_sample(case: Case) -> None:
    # What lived before is exchanged for something that nobody returns.
    found = case.joined(case.operator(10, 20, 1000), [(12, 512), (14, -1024)])
    assert found[:2] == [("sample", "aten.mm", 12, 0), ("counters", None, 2024, 0)]
    assert len(found) == 4


def test_what_the_allocators_peak_said_is_left_out_where_more_is_known(case: Case) -> None:
    def sample(peak: int) -> list[Row]:
        return [case.row(rows.SAMPLE, 20), (rows.COUNTERS + GPU, case.context, peak, -1, -1)]

    told = [(12, 300), (15, -300)]
    found = case.joined([*sample(1300), *case.operator(10, 20, 1000)], told)
    assert not [row for row in found if row[0] == "sample"]
    found = case.joined([*sample(1301), *case.operator(30, 40, 1000)], [])
    assert [row[0] for row in found] == ["sample", "counters", "operator", "counters"]


def test_what_is_taken_between_operators_is_of_none(case: Case) -> None:
    logged = [*case.operator(10, 20, 1000), *case.operator(30, 40, 1000)]
    found = case.joined(logged, [(22, 300), (25, -300)])
    assert found[2:4] == [("sample", ALLOCATOR_PEAK, 22, 0), ("counters", None, 1300, 0)]
    assert len(found) == 6


def test_releases_between_operators_change_the_counter_alone(case: Case) -> None:
    logged = [*case.operator(10, 20, 1000), *case.operator(30, 40, 700)]
    found = case.joined(logged, [(22, -300), (32, 50), (35, -50)])
    assert [row[2] for row in found if row[0] == "counters"] == [1000, 750, 700, 700]


def test_before_the_first_reading_nobody_knows_from_where_to_count(case: Case) -> None:
    assert case.joined([case.row(rows.OPERATOR, 10, 20)], [(12, 300), (15, -300)]) == [
        ("operator", "aten.mm", 10, 0)
    ]
    found = case.joined(case.operator(30, 40, 1000), [(32, 300), (35, -300)])
    assert found[1] == ("counters", None, 1300, 0)


def test_a_window_without_a_reading_goes_on_from_the_one_before(case: Case) -> None:
    case.joined(case.operator(10, 20, 1000), [(12, 300)])
    found = case.joined([case.row(rows.OPERATOR, 30, 40)], [(32, 50), (35, -50)])
    assert found[1] == ("counters", None, 1050, 0)


def test_one_reading_that_disagrees_with_its_neighbours_does_not_count(case: Case) -> None:
    logged = [row for at in range(6) for row in case.operator(100 * at, 100 * at + 50, 1000)]
    # What the third gave back came a moment too late for it.
    told = [(time, size) for at in range(6) for time, size in ((100 * at + 1, 300), (100 * at + 9, -300))]
    told[5] = (251, -300)
    counted = [row[2] for row in case.joined(logged, told) if row[0] == "counters"]
    assert max(counted) == 1300
    assert min(counted) == 1000


@pytest.mark.parametrize(
    ("values", "agreed"),
    [([5], [5]), ([5, 5, 9, 5, 5], [5, 5, 5, 5, 5]), ([5, 5, 5, 9, 9, 9, 9], [5, 5, 5, 9, 9, 9, 9])],
    ids=["one", "one of five", "a change that stays"],
)
def test_neighbours_decide(values: list[int], agreed: list[int]) -> None:
    assert exact_device._agreed(values) == agreed
