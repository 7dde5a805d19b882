"""Python and the packages that memexport needs or can use, by what its own metadata asks for."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from memexport.doctor.check import Check

_REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*[>=~]=\s*(?P<version>[\w.]+)")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_FOR_CONTRIBUTORS: Final = frozenset({"dev", "docs"})
_TORCH: Final = "torch"


@dataclass(frozen=True)
class Requirement:
    """A package, its least version, and the extra that asks for it; None for all installations."""

    name: str
    version: str
    extra: str | None


def package_checks() -> Iterator[Check]:
    """Python, what is always needed, torch, and each extra of which something is installed."""
    about = metadata.metadata("memexport")
    yield _python(about["Requires-Python"] or "")
    needed = [requirement for line in metadata.requires("memexport") or () if (requirement := parsed(line))]
    yield _needed([requirement for requirement in needed if requirement.extra is None])
    extras = sorted({r.extra for r in needed if r.extra} - _FOR_CONTRIBUTORS)
    missing = []
    for extra in extras:
        of_extra = [requirement for requirement in needed if requirement.extra == extra]
        if extra != _TORCH and not any(_installed(requirement.name) for requirement in of_extra):
            missing.append(extra)
        else:
            yield _extra(extra, of_extra)
    if missing:
        command = f"if you want them: pip install 'memexport[{','.join(missing)}]'"
        yield Check("extras", "ok", f"not installed: {', '.join(missing)}", command)


def parsed(line: str) -> Requirement | None:
    """A requirement as the metadata writes it; None for one without a version."""
    found = _REQUIREMENT.match(line)
    extra = _EXTRA.search(line)
    return Requirement(found["name"], found["version"], extra[1] if extra else None) if found else None


def is_older(version: str, least: str) -> bool:
    """Whether the version is below the least one, by their numbers."""
    return _numbers(version) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    """Up to the first part that is none; without zeros at the end, as 2.10 is 2.10.0."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _python(wanted: str) -> Check:
    version, least = platform.python_version(), wanted.removeprefix(">=").strip()
    if is_older(version, least):
        return Check("python", "failure", f"{version}; memexport needs {wanted}", "install a newer Python")
    return Check("python", "ok", f"{version} on {platform.system()} {platform.machine()}")


def _needed(requirements: list[Requirement]) -> Check:
    problems = [problem for requirement in requirements if (problem := _problem(requirement))]
    if problems:
        step = "pip install --upgrade memexport"
        return Check("packages", "failure", "; ".join(problems), step)
    return Check("packages", "ok", _versions(requirements))


def _extra(extra: str, requirements: list[Requirement]) -> Check:
    problems = [problem for requirement in requirements if (problem := _problem(requirement))]
    command = f"pip install 'memexport[{extra}]'"
    if extra == _TORCH and not _installed(_TORCH):
        says = "not installed: recordings can be read and converted, but nothing can be recorded"
        return Check(extra, "warning", says, command)
    if problems:
        return Check(extra, "warning", "; ".join(problems), command)
    return Check(extra, "ok", _versions(requirements))


def _problem(requirement: Requirement) -> str | None:
    version = _installed(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    if is_older(version, requirement.version):
        return f"{requirement.name} is {version}, and must be at least {requirement.version}"
    return None


def _versions(requirements: list[Requirement]) -> str:
    return ", ".join(f"{r.name} {_installed(r.name)}" for r in requirements)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
