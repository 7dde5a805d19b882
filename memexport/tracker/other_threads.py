"""Threads that the program starts itself: seen while they run modules.

torch keeps dispatch modes per thread and gives a new thread none; module hooks are called in every thread. So
the hooks push our mode where a module of such a thread begins, and pop it where that module ends.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _python_dispatch as modes

from memexport.tracker.threads import NO_TASK, graph_task


class OtherThreads:
    """Pushes and pops a mode in every thread but the one it was made for.

    Args:
        mode: is pushed.
    """

    def __init__(self, mode: modes.TorchDispatchMode) -> None:
        self._mode = mode
        self._own = threading.get_ident()
        # How many module calls each thread is in.
        self._depths: dict[int, int] = {}

    def module_starts(self) -> None:
        """Call this before a module runs, in its thread."""
        thread = threading.get_ident()
        if thread == self._own:
            return
        if thread in self._depths:
            self._depths[thread] += 1
        elif graph_task() == NO_TASK and self._mode not in modes._get_current_dispatch_mode_stack():
            # The autograd engine's threads have the mode already.
            modes._push_mode(self._mode)
            self._depths[thread] = 1

    def module_ends(self) -> None:
        """Call this when the module is over, by a result or an exception."""
        thread = threading.get_ident()
        if thread not in self._depths:
            return
        self._depths[thread] -= 1
        if not self._depths[thread]:
            del self._depths[thread]
            if modes._get_current_dispatch_mode() is self._mode:
                modes._pop_mode()

    def leave(self) -> None:
        """Nobody calls the others any more: threads that are inside a module still pop the mode then."""
        if self._depths:
            self._last_hook = register_module_forward_hook(self._ends_late, always_call=True)

    def _ends_late(self, _module: nn.Module, *_told: Any) -> None:
        self.module_ends()
        if not self._depths:
            self._last_hook.remove()
