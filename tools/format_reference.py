"""The references of formats, columns and JSON keys, as Markdown: from registry, model and schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gen_protos import ROOT
from readme_tables import formats_table
from schema_reference import enum_comments

from memexport import pipeline, registry
from memexport.model import COLUMNS, NULLS, UNKNOWN_SIZE
from memexport.registry import Format

EXAMPLE = ROOT / "tests" / "data" / "legacy_conv.pickle"
# What the schema's comment says of a column's type and null: they have columns of their own here.
_TYPE_OR_NULL = re.compile(r"^\d+ bits(, (un)?signed)?: |; null is .*|\.$")
NO_MEMBERS = "    options: {members: false, heading_level: 3, show_root_full_path: false}"


def formats_page() -> str:
    """What can be read and written, and the class behind each."""
    return "\n".join(
        (
            "# Formats\n",
            "What `memexport formats` prints. Of those that are written, the output's suffix chooses, or",
            "`--to` with a name; a file that is read is recognised by its content. *stable*: scripts may",
            "depend on what is in it. Packages can add formats:",
            "[Add an exporter](../how-to/add-an-exporter.md).\n",
            formats_table(),
            "\n## What is read\n",
            *(line for format_ in registry.SOURCES for line in _class(format_)),
            "\n## What is written\n",
            "Their options are those of `memexport.convert(…, options={…})`.\n",
            *(line for format_ in registry.EXPORTERS for line in _class(format_)),
        )
    )


def columns_page() -> str:
    """The columns of events, the values of the enums, the keys of a summary."""
    return "\n".join(
        (
            "# Columns and JSON\n",
            "One event is a row: in memory, in `.jsonl`, `.csv` and Parquet. Where a value is not known,",
            "files have `null` (`.csv`: an empty field), and columns in memory hold the number under *null*.",
            "Ids of strings, stacks and devices are text in files.\n",
            *_columns(),
            "\nWhat stands in which kind of event: [EventBatch](python.md#memexport.EventBatch).\n",
            *(line for name in ("EventKind", "Phase", "Category") for line in _values(name)),
            "\n## The JSON of a summary\n",
            "`memexport summary --json` prints one object, and `Summary.to_dict()` returns it. Keys stay;",
            "new ones may be added; what is not known is `null`, never 0.\n",
            "::: memexport.analysis.summary.Summary\n" + NO_MEMBERS + "\n",
            "::: memexport.analysis.device_summary.DeviceSummary\n" + NO_MEMBERS + "\n",
            "### An example\n",
            f"Of `tests/data/{EXAMPLE.name}`, a pickle of torch's MemoryTracker:\n",
            *_fenced("json", _example()),
        )
    )


def _class(format_: Format) -> Iterator[str]:
    yield f"### {format_.name}\n"
    files = f" ({', '.join(f'`{suffix}`' for suffix in format_.suffixes)})" if format_.suffixes else ""
    yield f"{_sentence(format_.summary)}{files}. Stability: {format_.stability}."
    if format_.next_step:
        yield f"{_sentence(format_.next_step)}.".replace("{path}", "FILE")
    yield f"\n::: {format_.target.replace(':', '.')}"
    yield "    options: {members: false, heading_level: 4, show_root_full_path: false}\n"


def _columns() -> Iterator[str]:
    meanings = enum_comments("ColumnId")
    yield from ("| column | type | null | what it is |", "| --- | --- | --- | --- |")
    for name, dtype in COLUMNS.items():
        meaning = _sentence(_TYPE_OR_NULL.sub("", meanings[name]))
        yield f"| `{name}` | {dtype} | {_null(name)} | {meaning} |"


def _null(name: str) -> str:
    if name in ("kind", "time_unix_ns"):
        return "never"
    return "−2^63" if NULLS[name] == UNKNOWN_SIZE else f"{int(NULLS[name])}".replace("-", "−")


def _values(name: str) -> Iterator[str]:
    yield f"\n## {name}\n"
    yield from ("| value | meaning |", "| --- | --- |")
    yield from (f"| `{value}` | {meaning} |" for value, meaning in enum_comments(name).items())


def _example() -> str:
    with pipeline.open(EXAMPLE) as recording:
        return json.dumps(recording.summary().to_dict(), indent=2)


def _fenced(language: str, text: str) -> tuple[str, ...]:
    return (f"```{language}", text, "```")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
