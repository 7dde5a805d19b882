"""Shapes and source lines in a trace, for recordings that have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import memexport

QUERY = """
select s.name as operator,
  extract_arg(s.arg_set_id, 'debug.inputs') as inputs,
  extract_arg(s.arg_set_id, 'debug.source') as source
from slice s where s.category = 'operator'
"""


def traced(path: Path, **options: bool) -> Path:
    model = nn.Linear(3, 4)
    with memexport.Tracker(model, exporters=[path], **options):
        model(torch.ones(2, 3))
    return path


def test_operators_show_their_inputs_and_the_line_that_called_them(
    load_trace: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = traced(tmp_path / "t.pftrace", record_shapes=True, record_stacks=True)
    rows = {row["operator"]: row for row in load_trace(path).query(QUERY)}
    line = traced.__code__.co_firstlineno + 3
    assert rows["aten::addmm"]["inputs"] == "float32[4], float32[2, 3], float32[3, 4]"
    assert rows["aten::addmm"]["source"] == f"{__file__}:{line}:traced"
    assert rows["aten::ones"]["inputs"] is None


def test_without_them_there_is_no_such_annotation(load_trace: Callable[[Path], Any], tmp_path: Path) -> None:
    rows = load_trace(traced(tmp_path / "t.pftrace")).query(QUERY)
    assert rows
    assert all(row["inputs"] is None and row["source"] is None for row in rows)
