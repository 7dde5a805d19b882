"""The registry finds the format that a name means, and takes in what other packages add."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from memexport import registry
from memexport.errors import UsageError
from memexport.registry import Format

PLUGIN = Format("acme", (".acme",), "acme:Exporter", "alpha", "what acme writes")


class EntryPoint:
    """An installed entry point."""

    name = "acme"

    def __init__(self, loaded):
        self.loaded = loaded

    def load(self):
        """What it refers to."""
        return self.loaded


@pytest.fixture
def installed(monkeypatch):
    """Pretend that another package has this entry point among the exporters."""

    def install(loaded):
        monkeypatch.setattr(
            metadata,
            "entry_points",
            lambda group: [EntryPoint(loaded)] if group == "memexport.exporters" else [],
        )

    return install


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("run.memx", "archive"),
        ("RUN.MEMX", "archive"),
        ("run.pftrace", "perfetto"),
        ("a.jsonl/run.json.gz", "chrome"),
        ("run.jsonl", "jsonl"),
    ],
)
def test_the_suffix_says_the_format(path, name):
    assert registry.exporter_for(path).name == name


def test_a_name_says_the_format_whatever_the_suffix():
    assert registry.exporter_for("run.memx", "jsonl").name == "jsonl"


@pytest.mark.parametrize(
    ("path", "name"), [("run", None), ("run.txt", None), ("run.memx", "nonsense"), ("run.memx", "")]
)
def test_what_no_format_fits_is_refused_with_the_choices(path, name):
    with pytest.raises(UsageError) as error:
        registry.exporter_for(path, name)
    assert "perfetto (.pftrace" in error.value.hint


def test_looking_a_format_up_imports_nothing_of_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "memexport.exporters.jsonl", raising=False)
    registry.exporter_for("run.jsonl")
    assert "memexport.exporters.jsonl" not in sys.modules


@pytest.mark.parametrize("formats", [registry.SOURCES, registry.EXPORTERS], ids=["sources", "exporters"])
def test_names_and_suffixes_are_told_apart(formats):
    assert len({format_.name for format_ in formats}) == len(formats)
    suffixes = [suffix for format_ in formats for suffix in format_.suffixes]
    # A source is found by its content: two kinds of pickle may share a suffix.
    assert len(set(suffixes)) == len(suffixes) or formats is registry.SOURCES


def test_another_package_can_add_a_format(installed):
    installed(PLUGIN)
    assert registry.exporter_for("x.acme") is PLUGIN
    assert list(registry.exporters())[-1] is PLUGIN
    assert PLUGIN not in registry.sources()


def test_an_entry_point_that_is_no_format_is_named(installed):
    installed(object())
    with pytest.raises(UsageError, match=r"acme.*memexport\.exporters"):
        list(registry.exporters())
