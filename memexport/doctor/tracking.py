"""Whether the tracker works with this torch: it uses parts that are not public, so it is tried on a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Final

from memexport.doctor.check import Check
from memexport.errors import MemexportError

_UPGRADE: Final = "pip install --upgrade 'memexport[torch]'; if that does not help, please report it"


def tracking_checks() -> Iterator[Check]:
    """What is recorded, and on which devices; nothing where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return
    try:
        import torch
    except Exception as error:  # whatever a broken installation raises
        says = f"torch is there but cannot be imported: {_first_line(error)}"
        yield Check(
            "tracking", "failure", says, "install torch anew: https://pytorch.org/get-started/locally/"
        )
        return
    yield _tried("operators", torch.__version__)
    yield _tried("allocator", torch.__version__)
    yield Check("devices", "ok", ", ".join(_devices()))


def _tried(capture: str, version: str) -> Check:
    """A forward and a backward under the tracker: every operator must be seen, and where it belongs."""
    name = f"tracking {capture}"
    try:
        problem = _problem(capture)
    except MemexportError as error:
        return Check(name, "warning", str(error), error.hint)
    except Exception as error:  # whatever a torch of another version raises
        return Check(name, "failure", f"fails with torch {version}: {_first_line(error)}", _UPGRADE)
    if problem:
        return Check(name, "failure", f"with torch {version}, {problem}", _UPGRADE)
    return Check(name, "ok", f"modules are found in forward and backward, with torch {version}")


def _problem(capture: str) -> str | None:
    import torch

    from memexport.tracker import Tracker

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    with Tracker(model, capture="allocator" if capture == "allocator" else "operators") as tracker:
        model(torch.ones(4, 8)).sum().backward()
    found = tracker.summary().top_operators
    for operator, module, phase in (("addmm", "0", "forward"), ("tanh_backward", "1", "backward")):
        places = [(str(f.operator), f.module, f.phase) for f in found]
        if not any(operator in name and (of, when) == (module, phase) for name, of, when in places):
            return f"{operator} of module {module} is not seen in {phase}"
    return None


def _devices() -> Iterator[str]:
    import torch

    yield "cpu"
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        yield f"{torch.accelerator.device_count()} × {accelerator.type}"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
