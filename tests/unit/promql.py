"""What a PromQL expression reads: which metrics, and which labels of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""
      (?P<space>\s+|\#[^\n]*)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    | (?P<range>\[[^\]]*\])
    | (?P<number>\d[\w.]*)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^=<>(){},@])
    """,
    re.VERBOSE,
)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OPERATORS = {"and", "or", "unless", "bool", "offset", "start", "end", "atan2", "inf", "nan"}
CLOSING = {"(": ")", "{": "}"}


@dataclass
class Read:
    """What an expression reads.

    Attributes:
        labels: which each metric is matched by.
        grouping: labels that results are grouped or joined by.
        functions: functions and aggregations.
    """

    labels: dict[str, set[str]] = field(default_factory=dict)
    grouping: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


def read_by(expression: str) -> Read:
    """What the expression reads.

    Raises:
        ValueError: it has a character that PromQL has not, or a bracket without its other.
    """
    tokens = _tokens(expression)
    _check_balanced(tokens)
    read = Read()
    index = 0
    while index < len(tokens):
        kind, text = tokens[index]
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        index += 1
        if text == "{":
            raise ValueError(f"a selector without a metric in {expression!r}")
        if kind != "name" or text in OPERATORS:
            continue
        if text in GROUPING:
            names, index = _names(tokens, index) if following == "(" else (set(), index)
            read.grouping |= names
        elif following in ("(", "by", "without"):
            read.functions.add(text)
        else:
            names, index = _names(tokens, index) if following == "{" else (set(), index)
            read.labels.setdefault(text, set()).update(names)
    return read


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, position = [], 0
    while position < len(expression):
        match = TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"not PromQL: {expression[position:]!r}")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match[0]))
        position = match.end()
    return found


def _check_balanced(tokens: list[tuple[str, str]]) -> None:
    awaited: list[str] = []
    for kind, text in tokens:
        if kind == "sign" and text in CLOSING:
            awaited.append(CLOSING[text])
        elif kind == "sign" and text in CLOSING.values() and (not awaited or awaited.pop() != text):
            raise ValueError(f"{text} closes nothing")
    if awaited:
        raise ValueError(f"{awaited[-1]} is missing")


def _names(tokens: list[tuple[str, str]], begin: int) -> tuple[set[str], int]:
    """The names between the brackets that open at `begin`, and where they are closed."""
    end = next(i for i in range(begin, len(tokens)) if tokens[i][1] in CLOSING.values())
    return {text for kind, text in tokens[begin:end] if kind == "name"}, end + 1
