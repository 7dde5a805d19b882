"""What programs depend on of the integrations: names and arguments, and that they load nothing early."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import memexport

CALLBACK = ["exporters", "log_peak", "options"]
# Of the framework, or of a simulation, which needs a model that was made in it.
NOT_OF_A_CALLBACK = {
    *("modules", "optimizer", "exporters", "step_at_optimizer"),
    *("fake", "device", "world_size", "budget", "fake_value"),
}


def printed(code):
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
@pytest.mark.filterwarnings("ignore")
def test_the_callbacks_take_these_arguments(framework):
    module = pytest.importorskip(f"memexport.integrations.{framework}")
    callback = module.MemoryCallback
    assert list(inspect.signature(callback).parameters) == CALLBACK
    assert callback().tracker is None


def test_the_callbacks_take_every_option_of_a_tracker_that_makes_sense_there():
    """With its types, so that a type checker and an editor know them."""
    from memexport.integrations._options import TrackerOptions

    of_tracker = inspect.signature(memexport.Tracker).parameters
    assert list(TrackerOptions.__annotations__) == [
        name for name in of_tracker if name not in NOT_OF_A_CALLBACK
    ]
    for name, hint in TrackerOptions.__annotations__.items():
        assert hint.__forward_arg__ == of_tracker[name].annotation


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
@pytest.mark.filterwarnings("ignore")
def test_the_callbacks_refuse_an_option_that_they_do_not_have(framework):
    """Also one of the tracker's: a callback that ended each step twice would number them wrong."""
    module = pytest.importorskip(f"memexport.integrations.{framework}")
    with pytest.raises(TypeError, match="no such option: step_at_optimizer; there are flush_interval, "):
        module.MemoryCallback(step_at_optimizer=True)


def test_the_profilers_handler_takes_these_arguments():
    from memexport.integrations.profiler import handler

    assert list(inspect.signature(handler).parameters) == ["outputs", "worker_name"]


def test_the_tracker_gives_the_peak_of_an_interval():
    assert list(inspect.signature(memexport.Tracker.take_peak).parameters) == ["self"]


def test_the_tensorboard_exporter_has_two_homes_and_is_one():
    from memexport.exporters import tensorboard
    from memexport.integrations.tensorboard import TensorBoardExporter

    assert TensorBoardExporter is tensorboard.TensorBoardExporter
    assert list(inspect.signature(TensorBoardExporter).parameters) == ["destination"]


def test_the_package_imports_no_framework():
    frameworks = "{'torch', 'lightning', 'transformers', 'tensorboard', 'numpy'}"
    assert printed(f"import sys, memexport.integrations; print({frameworks} & sys.modules.keys())") == "set()"


@pytest.mark.parametrize(
    ("framework", "blocked"),
    [("lightning", ("lightning", "pytorch_lightning")), ("transformers", ("transformers",))],
    ids=["lightning", "transformers"],
)
def test_without_its_package_a_callback_says_what_to_install(framework, blocked):
    code = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from memexport import UsageError
try:
    import memexport.integrations.{framework}
except UsageError as error:
    print(error.hint)
"""
    assert printed(code) == f"pip install 'memexport[{framework}]'"
