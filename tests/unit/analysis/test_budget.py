"""Where a device would run out of memory."""

from __future__ import annotations

from typing import Any

from memexport.analysis.budget import BudgetCheck
from memexport.model import EventBatch, EventKind, Phase, Tables

MIB = 1 << 20


def check(tables: Tables, budget: int = 10 * MIB) -> BudgetCheck:
    return BudgetCheck(budget, lambda device: device != 2, tables)


def allocation(tables: Tables, *, reserved: int = -1, **columns: Any) -> EventBatch:
    given = {"allocated_bytes": [12 * MIB], "device": [0], "size_bytes": [5 * MIB], "time_unix_ns": [7]}
    names = {
        "name": [tables.strings.intern("aten.mm.default")],
        "module": [tables.strings.intern("blocks.0")],
        "phase": [Phase.BACKWARD],
        "step": [3],
    }
    return EventBatch(kind=[EventKind.ALLOCATION], reserved_bytes=[reserved], **{**given, **names, **columns})


def test_the_first_event_beyond_it_is_named_and_marked() -> None:
    tables = Tables()
    fold = check(tables)
    marked = fold.apply(allocation(tables, reserved=20 * MIB))
    assert marked.kind.tolist() == [EventKind.ALLOCATION, EventKind.MARKER]
    assert tables.strings[int(marked.name[1])] == "out of budget"
    assert marked.size_bytes.tolist() == [5 * MIB] * 2
    assert (marked.module[1], marked.phase[1], marked.step[1]) == (marked.module[0], Phase.BACKWARD, 3)
    (found,) = fold.exceeded
    assert found.describe("cuda:0", 10 * MIB) == (
        "cuda:0 would run out of 10.00 MiB in aten.mm.default of blocks.0 (backward, step 3):"
        " it asked for 5.00 MiB and would bring reserved to 20.00 MiB"
    )


def test_what_counts_is_reserved_where_it_is_known_and_allocated_elsewhere() -> None:
    tables = Tables()
    fold = check(tables)
    assert len(fold.apply(allocation(tables, reserved=10 * MIB))) == 1
    assert len(fold.apply(allocation(tables))) == 2
    assert "bring allocated to 12.00 MiB" in fold.exceeded[0].describe("cpu", 10 * MIB)


def test_each_device_is_judged_once_and_some_not_at_all() -> None:
    tables = Tables()
    fold = check(tables)
    for device in (0, 0, 1, 2):
        fold.apply(allocation(tables, device=[device]))
    assert [found.device for found in fold.exceeded] == [0, 1]


def test_what_lived_before_has_no_operator() -> None:
    tables = Tables()
    fold = check(tables)
    fold.apply(allocation(tables, name=[0], module=[0], phase=[0], step=[-1]))
    assert (
        fold.exceeded[0]
        .describe("cpu", 10 * MIB)
        .startswith("cpu would run out of 10.00 MiB in what lived before the recording: it asked")
    )


def test_a_recording_that_fits_stays_as_it_is() -> None:
    tables = Tables()
    fold = check(tables, budget=1 << 40)
    fitting = allocation(tables)
    assert fold.apply(fitting) is fitting
    assert fold.exceeded == []
