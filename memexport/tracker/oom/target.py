"""Where recordings of failed requests go."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from memexport import ranks, registry, remote
from memexport.errors import OutputError, UsageError
from memexport.tracker.ranks import process_ranks

_IN_FOLDER: Final = "oom-{rank}-{pid}.memx"
_SUFFIXES: Final = tuple(suffix for format_ in registry.EXPORTERS for suffix in format_.suffixes)


class Target:
    """A folder, made when it is needed, or a file; later files are numbered, none is replaced.

    Args:
        place: a path that ends in the suffix of an output format is a file, any other a folder. It may have
            the placeholders of `memexport.ranks.filled`.

    Raises:
        UsageError: it is a URL, or has another placeholder.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        name = os.fspath(place)
        if remote.is_url(name):
            raise UsageError(f"{name!r} is a URL, but on_oom writes to this machine", hint='on_oom="oom/"')
        ranks.filled(name, ranks.this_process())
        is_file = name.lower().endswith(_SUFFIXES) and not Path(name).is_dir()
        # The program may change folders.
        self._name = os.path.join(ranks.escaped(os.getcwd()), name, "" if is_file else _IN_FOLDER)  # noqa: PTH109, PTH118 - as text: it has placeholders

    def check(self) -> None:
        """Look whether something could be written, and write nothing.

        Raises:
            OutputError: it could not.
        """
        path = Path(self._filled())
        folder = next(parent for parent in path.parents if parent.exists())
        if not folder.is_dir():
            raise OutputError(folder, None, "is no folder, and on_oom would write into it")
        if not os.access(folder, os.W_OK):
            raise OutputError(folder, None, "cannot be written to, and on_oom would do so")

    def next_path(self) -> Path:
        """One where nothing is yet; its folder is there now.

        Raises:
            OSError: the folder cannot be made.
        """
        path = Path(self._filled())
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = next((s for s in _SUFFIXES if path.name.lower().endswith(s)), path.suffix)
        stem = path.name[: len(path.name) - len(suffix)]
        numbered = (path.with_name(f"{stem}-{number}{suffix}") for number in itertools.count(2))
        return next(p for p in itertools.chain([path], numbered) if not p.exists())

    def _filled(self) -> str:
        return ranks.filled_for_one(self._name, process_ranks())[0]
