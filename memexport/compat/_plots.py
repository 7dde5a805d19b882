"""Plots counters with matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Mapping

from memexport.compat._operator_table import Trace


def show(counters: Mapping[str, Trace], markers: Mapping[str, int]) -> None:
    """A figure with all counters, and one for each, for they may differ much in size.

    Raises:
        ImportError: matplotlib is not installed.
    """
    values = {f"{name}_memory": [value for _, value in trace.values()] for name, trace in counters.items()}
    for shown in (values, *({name: line} for name, line in values.items())):
        _figure(shown, markers)


def _figure(lines: Mapping[str, list[float]], markers: Mapping[str, int]) -> None:
    from matplotlib import pyplot

    highest = max((value for line in lines.values() for value in line), default=0.0)
    lowest = min((value for line in lines.values() for value in line), default=0.0)
    pyplot.figure()
    for name, line in lines.items():
        pyplot.plot(range(len(line)), line, label=name)
    pyplot.xlabel("# Operator Calls")
    pyplot.ylabel("Memory (MB)")
    pyplot.legend()
    for name, index in markers.items():
        style = "r" if name.startswith("fw_bw_boundary") else "k-"
        pyplot.plot([index, index], [lowest * 0.999, highest * 1.001], style, lw=2, label=name)
