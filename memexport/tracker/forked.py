"""Lets a process that is forked from one that records (a DataLoader worker) record nothing."""

from __future__ import annotations

import os
import weakref

from memexport.tracker.capture import Capture

_watched: weakref.WeakSet[Capture] = weakref.WeakSet()


def stop_in_forked_child(capture: Capture) -> None:
    """A process that is forked from this one does not go on to watch, until `stopped` was called here."""
    _watched.add(capture)


def stopped(capture: Capture) -> None:
    """It does not watch any more."""
    _watched.discard(capture)


def _forget_in_child() -> None:
    """A forked process has no drain thread: what it logged would only pile up."""
    for capture in list(_watched):
        capture.stop()
        capture.log_bytes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
