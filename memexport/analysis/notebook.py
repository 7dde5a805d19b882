"""Summaries and recordings as notebooks show them: fragments of HTML, without scripts or a network.

Text inherits the notebook's colours, so light and dark ones are both served; the bars' colours have enough
contrast to either. Names are escaped: whatever a file says, it stays text.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from memexport.analysis.palette import CATEGORY_COLOURS, COUNTER_COLOURS
from memexport.analysis.report import LISTED, headline, largest, peak_sentences, trouble_sentences
from memexport.analysis.report_growth import growth_rows, is_suspicious, steady_sentence
from memexport.analysis.text import human_bytes, human_time, printable
from memexport.model import Category, RecordingInfo

if TYPE_CHECKING:
    from memexport.analysis.device_summary import DeviceSummary
    from memexport.analysis.summary import Summary

_UNKNOWN: Final = "\N{EN DASH}"
_GREY: Final = "rgba(128,128,128,.35)"
_BAR: Final = COUNTER_COLOURS["allocated"]
_LONGEST: Final = 200

_Cell = str
"""HTML that is safe already."""


def summary_html(summary: Summary) -> str:
    """The page of `report`, with bars."""
    parts = [f"<p><strong>{_text(sentence)}</strong></p>" for sentence in peak_sentences(summary)]
    parts.append(f"<p>{_text(headline(summary))}</p>")
    if summary.devices:
        parts.append(_counters(summary))
    for name, device in summary.devices.items():
        parts += _live_at_peak(name, device, summary)
    if summary.top_operators:
        parts.append(_operators(summary))
    parts += _growth(summary)
    parts += [f"<p>{_text(sentence)}</p>" for sentence in trouble_sentences(summary)]
    if summary.advice:
        items = "".join(f"<li>{_text(advice.text)}</li>" for advice in summary.advice)
        parts.append(f"<p><strong>What to try next</strong></p><ol>{items}</ol>")
    parts += [f"<p><strong>Warning:</strong> {_text(warning)}</p>" for warning in summary.warnings]
    return _fragment(parts)


def recording_html(name: str, info: RecordingInfo) -> str:
    """What a recording says of itself; what is not known is left out. Nothing of the file is read for it."""
    start = None if info.start_time_unix_ns is None else human_time(info.start_time_unix_ns)
    rank = None if info.rank is None else f"{info.rank} of {info.world_size or '?'}"
    facts = {
        "format": info.format,
        "made by": " ".join(part for part in (info.producer, info.producer_version) if part),
        "began": start if info.clock == "unix" else None,
        "host": info.host,
        "rank": rank,
        "devices": ", ".join(map(str, info.devices)),
        "torch": info.torch_version,
        "command": " ".join(info.command_line),
    }
    rows = [(_text(key), _code(value)) for key, value in facts.items() if value]
    calls = "<code>.summary()</code>, <code>.modules()</code> and <code>.batches()</code> read it."
    return _fragment(
        [f"<p><strong>Recording {_code(name)}</strong></p>", _table(("", ""), rows), f"<p>{calls}</p>"]
    )


def _counters(summary: Summary) -> str:
    rows = [
        (_text(name), counter, *map(human_bytes, (values.start, values.peak, values.end)))
        for name, device in summary.devices.items()
        for counter in ("allocated", "active", "reserved")
        if (values := getattr(device, counter)) is not None
    ]
    return _table(("device", "counter", ">start", ">peak", ">end"), rows)


def _live_at_peak(name: str, device: DeviceSummary, summary: Summary) -> Iterator[str]:
    total = sum(device.categories_at_peak.values())
    where = "at the peak" if len(summary.devices) == 1 else f"at the peak of {name}"
    listings: list[tuple[str, Sequence[tuple[str | None, int]]]] = [
        ("category", list(device.categories_at_peak.items())),
        ("module", [(row.module, row.bytes) for row in device.modules_at_peak]),
        ("operator", [(row.operator, row.bytes) for row in device.operators_at_peak]),
    ]
    for what, rows in listings:
        # That all is of nobody is no news.
        if {row_name for row_name, _ in rows} - {None, "unattributed"}:
            yield _shares(f"{where}, by {what}", largest(rows, total), total)


def _shares(title: str, rows: Iterable[tuple[str | None, int]], total: int) -> str:
    cells = [
        (_code(name), human_bytes(size), f"{size / total:.1%}", _bar(name, size / total))
        for name, size in rows
    ]
    return _table((title, ">bytes", ">share", ""), cells)


def _bar(name: str | None, share: float) -> _Cell:
    known = name is not None and name.upper() in Category.__members__
    colour = CATEGORY_COLOURS.get(Category[name.upper()], _BAR) if name is not None and known else _BAR
    width = f"{max(0.0, min(1.0, share)):.1%}"
    return (
        '<div style="width:12em"><div style="height:.8em;border-radius:2px;'
        f'width:{width};background:{colour}"></div></div>'
    )


def _operators(summary: Summary) -> str:
    rows = [
        (*map(_code, (row.operator, row.module)), _text(row.phase or _UNKNOWN), human_bytes(row.bytes),
         f"{row.count:,}")
        for row in summary.top_operators[:LISTED]
    ]  # fmt: skip
    return _table(("operators by net bytes", "module", "phase", ">bytes", ">calls"), rows)


def _growth(summary: Summary) -> Iterator[str]:
    for name, growth in summary.growth.items():
        if growth is not None and is_suspicious(growth):
            rows = [(_code(who), *map(_text, cells)) for who, *cells in growth_rows(growth)]
            title = f"live after each step on {name}: a leak?"
            yield _table((title, ">a step", ">first", ">last", ">rises"), rows)
        elif growth is not None:
            yield f"<p>{_text(steady_sentence(name, growth))}</p>"


def _fragment(parts: Sequence[str]) -> str:
    return f'<div style="color:inherit;line-height:1.4;overflow-x:auto">{"".join(parts)}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> str:
    """A table; columns that begin with ">" are right-aligned."""
    sides = ["right" if column.startswith(">") else "left" for column in columns]
    heads = (column.removeprefix(">") for column in columns)
    lines = ["".join(map(_head, heads, sides))] if any(columns) else []
    lines += ["".join(map(_data, row, sides)) for row in rows]
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return f'<table style="border-collapse:collapse;margin:.8em 0;color:inherit">{body}</table>'


def _head(title: str, side: str) -> str:
    style = f"text-align:{side};padding:.2em .8em .2em 0;border:0;border-bottom:1px solid {_GREY}"
    return f'<th style="{style}">{_text(title)}</th>'


def _data(cell: _Cell, side: str) -> str:
    style = f"text-align:{side};padding:.1em .8em .1em 0;border:0;vertical-align:middle"
    return f'<td style="{style}">{cell}</td>'


def _code(name: str | None) -> _Cell:
    if not name:
        return _UNKNOWN
    return f'<code style="background:none;color:inherit;padding:0">{_text(name, _LONGEST)}</code>'


def _text(text: str, longest: int = 1_000) -> _Cell:
    return html.escape(printable(text, longest))
