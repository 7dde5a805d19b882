"""Lets torch's own CUDA snapshots say which operator, module and phase made an allocation.

torch keeps a text with every allocation that its history records (`user_metadata`). While an operator runs,
it is ours (`Stamp`); before and after, whatever the program has set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memexport.analysis.stamps import Stamp
from memexport.errors import UsageError
from memexport.model import Phase
from memexport.tracker.rows import Labels
from memexport.tracker.running import Running

# torch's types for these are not declared.
_C: Any = torch._C
_memory: Any = torch.cuda.memory


def require(*, is_simulated: bool) -> None:
    """Make sure that there are snapshots that could say it.

    Raises:
        UsageError: there are not: tensors are simulated, or this torch has no CUDA or is too old.
    """
    if is_simulated:
        why = "simulated tensors are in no snapshot"
    elif not hasattr(_C, "_cuda_setMemoryMetadata") or not hasattr(_memory, "_set_memory_metadata"):
        why = f"torch {torch.__version__} keeps no text with CUDA's allocations"
    else:
        return
    raise UsageError(f"annotate_snapshots does not work here: {why}")


class Stamps:
    """Knows the text of each operator in each context.

    Args:
        labels: what contexts stand for.
        running: what is running in each thread.
    """

    def __init__(self, labels: Labels, running: Running) -> None:
        self._labels = labels
        self._running = running
        self._texts: dict[tuple[int, Any], str] = {}

    def around(self, dispatch: Callable[..., Any], fail: Callable[[Exception], None]) -> Callable[..., Any]:
        """The same function, with the text set while it runs; `fail` is told of an error of ours."""
        read: Callable[[], str] = _memory._get_memory_metadata
        write: Callable[[str], None] = _memory._set_memory_metadata
        # Before, there is no allocator that could be told.
        is_ready: Callable[[], bool] = torch.cuda.is_initialized

        def stamped(mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            before = None
            try:
                if is_ready():
                    before = read()
                    write(self._text(func))
            except Exception as error:
                fail(error)
            try:
                return dispatch(mode, func, types, args, kwargs)
            finally:
                if before is not None:
                    write(before)

        return stamped

    def _text(self, function: Any) -> str:
        context = self._running.here()
        text = self._texts.get((context, function))
        if text is None:
            labels = self._labels
            module = labels.tables.strings.get(labels.modules[context])
            text = Stamp(Phase(labels.phases[context]), str(function), module).text()
            self._texts[context, function] = text
        return text
