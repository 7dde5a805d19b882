"""What the outputs are called where one name stands for several recordings of a process."""

from __future__ import annotations

import os

from memexport import registry
from memexport.pipeline import StrPath


def name_with(output: StrPath, part: str) -> str:
    """The name with this part before its suffix: "run.memx" becomes "run-PART.memx".

    Raises:
        UsageError: the name does not say which format to write.
    """
    name = os.fspath(output)
    fitting = [s for s in registry.exporter_for(name).suffixes if name.lower().endswith(s)]
    stem = name[: -len(max(fitting, key=len))]
    return f"{stem}-{part}{name[len(stem) :]}"
