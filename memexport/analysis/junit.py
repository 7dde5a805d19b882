"""Verdicts as a JUnit report, which CI systems show as tests.

What they agree on: https://github.com/testmoapp/junitxml
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from memexport.analysis.limits import Verdict
from memexport.analysis.text import printable


@dataclass(frozen=True)
class Judged:
    """One INPUT: the verdicts on it, or the sentence that says why it cannot be read."""

    name: str
    verdicts: tuple[Verdict, ...] = ()
    error: str | None = None


def junit_xml(judged: Sequence[Judged]) -> bytes:
    """A test suite with one test case for each limit and INPUT; one "readable" for an INPUT that is not."""
    failures = sum(not verdict.is_kept for one in judged for verdict in one.verdicts)
    errors = sum(one.error is not None for one in judged)
    tests = errors + sum(len(one.verdicts) for one in judged)
    counts = {"tests": str(tests), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    suites = Element("testsuites", {"name": "memexport check", **counts})
    suite = SubElement(suites, "testsuite", {"name": "memexport check", **counts})
    for one in judged:
        _add(suite, one)
    encoded: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return encoded + b"\n"


def _add(suite: Element, one: Judged) -> None:
    for verdict in one.verdicts:
        case = SubElement(suite, "testcase", classname=printable(one.name), name=verdict.limit)
        if verdict.is_kept:
            SubElement(case, "system-out").text = printable("; ".join(verdict.facts))
        else:
            reasons = [printable(reason) for reason in verdict.reasons]
            SubElement(case, "failure", message=reasons[0], type=verdict.limit).text = "\n".join(reasons)
    if one.error is not None:
        case = SubElement(suite, "testcase", classname=printable(one.name), name="readable")
        SubElement(case, "error", message=printable(one.error), type="InputError")
