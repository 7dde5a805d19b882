"""Which formats there are: one line each. The command line, the README and the contract tests read it here.

Nothing is imported before it is used. Other packages add formats through the entry-point groups
`memexport.sources` and `memexport.exporters`: the entry point's name is the format's name, and it refers to a
`Format`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from memexport.errors import UsageError

Stability = Literal["stable", "beta", "alpha"]


@dataclass(frozen=True)
class Format:
    """One format that memexport reads or writes.

    Attributes:
        name: short, lower case; what `--to` takes and a summary's "format" shows.
        suffixes: file name endings that mean this format, the preferred one first. A source's are only for
            people: it is found by content.
        target: "module:Class" of the source or exporter.
        stability: "stable": scripts may depend on what it writes.
        summary: one line for `memexport formats`.
        next_step: what to do with a file that was just written; `{path}` stands for it.
    """

    name: str
    suffixes: tuple[str, ...]
    target: str
    stability: Stability
    summary: str
    next_step: str = ""

    def load(self) -> Callable[..., Any]:
        """Import the class."""
        module, _, attribute = self.target.partition(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return loaded


# A source is asked in this order whether the content is its own.
SOURCES: tuple[Format, ...] = (
    Format("memexport.archive", (".memx",), "memexport.sources.archive:ArchiveSource", "beta",
           "memexport archive: everything, lossless, versioned"),
    Format("torch.memory_tracker", (".pickle", ".pkl"),
           "memexport.sources.memory_tracker:MemoryTrackerSource", "stable",
           "pickle of torch's MemoryTracker.save_stats; nothing in it is executed"),
    Format("torch.cuda.snapshot", (".pickle", ".pkl"),
           "memexport.sources.cuda_snapshot:CudaSnapshotSource", "beta",
           "pickle of torch.cuda.memory._dump_snapshot; nothing in it is executed"),
    Format("kineto", (".json", ".json.gz"), "memexport.sources.kineto:KinetoSource", "beta",
           "torch.profiler trace recorded with profile_memory=True"),
)  # fmt: skip

EXPORTERS: tuple[Format, ...] = (
    Format("archive", (".memx",), "memexport.exporters.archive:ArchiveExporter", "beta",
           "memexport archive: everything, lossless, versioned",
           "Look into it: memexport summary {path}"),
    Format("perfetto", (".pftrace", ".perfetto-trace"),
           "memexport.exporters.perfetto:PerfettoExporter", "beta",
           "Perfetto trace: opens in ui.perfetto.dev",
           "Look at it: memexport view {path}, or open it at https://ui.perfetto.dev"),
    Format("chrome", (".json", ".json.gz"), "memexport.exporters.chrome:ChromeExporter", "beta",
           "Chrome trace JSON: opens in chrome://tracing and ui.perfetto.dev",
           "Open it at https://ui.perfetto.dev or in chrome://tracing"),
    Format("jsonl", (".jsonl", ".jsonl.gz"), "memexport.exporters.jsonl:JsonlExporter", "stable",
           "one JSON object per event and line, for scripts",
           "One event a line: head -n 3 {path}"),
    Format("parquet", (".parquet",), "memexport.exporters.parquet:ParquetExporter", "beta",
           "Parquet table, one row per event: DuckDB, Polars, Spark, pandas",
           "Query it: duckdb -c \"FROM '{path}' LIMIT 3\""),
    Format("csv", (".csv", ".csv.gz"), "memexport.exporters.csv:CsvExporter", "beta",
           "comma-separated values, one event a line, for spreadsheets"),
    Format("pprof", (".pb.gz",), "memexport.exporters.pprof:PprofExporter", "beta",
           "pprof profile of the peak: opens in go tool pprof",
           "Look at it: go tool pprof -top {path}"),
    Format("html", (".html",), "memexport.exporters.html:HtmlExporter", "beta",
           "self-contained page: memory over time, what was live when, modules at the peak",
           "Open it in a browser: {path}"),
    Format("png", (".png",), "memexport.exporters.picture:PngExporter", "beta",
           "picture of memory over time by category, drawn with matplotlib"),
    Format("svg", (".svg",), "memexport.exporters.picture:SvgExporter", "beta",
           "the same picture for documents: its texts are texts"),
    Format("torch-snapshot", (".snapshot.pickle",),
           "memexport.exporters.torch_snapshot:TorchSnapshotExporter", "beta",
           "torch memory snapshot: opens in pytorch.org/memory_viz",
           "Open it at https://pytorch.org/memory_viz"),
    Format("otlp-file", (".otlp.jsonl",), "memexport.exporters.otlp_file:OtlpFileExporter", "beta",
           "OpenTelemetry metrics as OTLP JSON lines",
           "A Collector reads it with its otlpjsonfile receiver"),
    Format("otlp", (), "memexport.exporters.otlp:OtlpExporter", "beta",
           "OpenTelemetry metrics, sent to a collector"),
    Format("tensorboard", (), "memexport.exporters.tensorboard:TensorBoardExporter", "beta",
           "TensorBoard scalars of each step, in a log directory",
           "Look at it: tensorboard --logdir {path}"),
)  # fmt: skip


def sources() -> Iterator[Format]:
    """Every format that can be read, memexport's own first."""
    yield from SOURCES
    yield from _installed("memexport.sources")


def exporters() -> Iterator[Format]:
    """Every format that can be written, memexport's own first."""
    yield from EXPORTERS
    yield from _installed("memexport.exporters")


def exporter_for(path: str | os.PathLike[str], name: str | None = None) -> Format:
    """The format to write to this path: the one called `name`, else the one with the longest fitting suffix.

    Raises:
        UsageError: there is none.
    """
    formats = list(exporters())
    if name is not None:
        for candidate in formats:
            if candidate.name == name:
                return candidate
        raise UsageError(f"no output format is called {name!r}", hint=_choices(formats))
    filename = os.fspath(path).lower()
    fitting = [(len(s), f) for f in formats for s in f.suffixes if filename.endswith(s)]
    if not fitting:
        raise UsageError(
            f"the name {os.fspath(path)!r} does not say which format to write", hint=_choices(formats)
        )
    return max(fitting, key=lambda pair: pair[0])[1]


def _choices(formats: list[Format]) -> str:
    return "formats: " + ", ".join(f"{f.name} ({' '.join(f.suffixes)})" for f in formats)


def _installed(group: str) -> Iterator[Format]:
    for entry_point in metadata.entry_points(group=group):
        loaded = entry_point.load()
        if not isinstance(loaded, Format):
            raise UsageError(
                f"entry point {entry_point.name!r} of {group} is a {type(loaded).__name__}, not a Format"
            )
        yield loaded
