"""Estimation without hardware: a program runs on tensors that are not there, nor is their device."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import autograd, overrides
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.optim.optimizer import _foreach_supported_types as _optimizers_types
from torch.utils import _foreach_utils, data

from memexport.analysis.allocator_settings import AllocatorSettings, parse_settings
from memexport.tracker import fake_cuda, fake_world
from memexport.tracker.fake_calls import SimulatedCalls, attention
from memexport.tracker.fake_mode import SimulatedTensors, small_values_kept, tell_outside
from memexport.tracker.fake_options import FakeOptions, allocator_conf
from memexport.tracker.replaced import Replacements

_NO_MEMORY: Final = dict.fromkeys(("allocated", "reserved", "peak_allocated", "peak_reserved"), 0)


class Simulation:
    """Everything that lets a program run on simulated tensors, from `start` to `stop`.

    Attributes:
        counters: what `torch.cuda.memory_allocated` and the like are answered with.
    """

    def __init__(self, options: FakeOptions) -> None:
        self.options = options
        self.settings: AllocatorSettings = parse_settings(allocator_conf())
        self.counters: Callable[[], Mapping[str, int]] = lambda: _NO_MEMORY
        device = fake_cuda.DEVICE if options.device == "cuda" else None
        self._calls = SimulatedCalls(device)
        self._tensors = SimulatedTensors(options.value, device, self._calls)
        self._unsaved = 0
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        """Begin: from now on, tensors take no memory.

        Raises:
            UsageError: this torch cannot simulate a world.
        """
        with contextlib.ExitStack() as undo:
            replacements = Replacements()
            undo.callback(replacements.undo)
            self._stand_in(replacements, undo)
            undo.enter_context(small_values_kept())
            undo.enter_context(self._tensors)
            self._calls.__enter__()  # type: ignore[no-untyped-call]  # torch's is not annotated
            undo.callback(self._remove_calls)
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """End; what is left are the simulated tensors, see `tell_outside`. Calling it twice does nothing."""
        self._undo.close()

    def warnings(self) -> Iterator[str]:
        """Sentences about what was made up."""
        if self.options.device == "cuda":
            yield (
                "cuda is simulated: allocated and reserved are estimates by the rules of torch 2.13's caching"
                " allocator, for one stream; what kernels and libraries take for themselves is not in them"
            )
            if self.settings.ignored:
                yield f"allocator settings that are not simulated: {', '.join(self.settings.ignored)}"
        if self._tensors.reads:
            value = self.options.value
            yield f"{_told('values were read', self._tensors.reads)}; given: {value:g} or False"
        if self._tensors.guesses:
            yield f"{_told('shapes depend on values', self._tensors.guesses)}; taken: the largest possible"
        if self._unsaved:
            yield f"torch.save was called {self._unsaved} times: simulated tensors were not saved"

    def _stand_in(self, replacements: Replacements, undo: contextlib.ExitStack) -> None:
        options = self.options
        if options.world_size is not None:
            undo.callback(fake_world.set_environment(options.world_size))
            fake_world.stand_in(replacements, options.world_size)
        if options.device == "cuda":
            fake_cuda.stand_in(
                replacements,
                device_count=min(options.world_size or 1, fake_world.MOST_PER_NODE),
                total_memory=options.budget or fake_cuda.USUAL_MEMORY,
                counters=lambda: self.counters(),
                program_decides=self._calls.program_decides,
            )
            tell_outside()
            # Without CUDA, memory cannot be pinned; a tensor's storage is the same one if it is.
            replacements.set(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)
            replacements.set(torch, "Generator", fake_cuda.Generator)
            # LSTMs of the CPU's library are not CUDA's either, but take less than what CUDA does.
            undo.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)
            # torch's own modules call it where no mode sees it.
            replacements.set(functional, "scaled_dot_product_attention", attention)
            # What is on the CPU and meets something on the device is taken to be there too.
            before = functorch_config.fake_tensor_prefer_device_type
            undo.callback(setattr, functorch_config, "fake_tensor_prefer_device_type", before)
            functorch_config.fake_tensor_prefer_device_type = "cuda"
        self._stand_in_everywhere(replacements, undo)

    def _stand_in_everywhere(self, replacements: Replacements, undo: contextlib.ExitStack) -> None:
        swap_tensors: Callable[..., None] = torch.utils.swap_tensors

        def swap(first: torch.Tensor, second: torch.Tensor) -> None:
            self._tensors.forget(first, second)
            swap_tensors(first, second)

        # `Module.to` swaps simulated parameters, which torch 2.13 then refuses: its converter refers to them.
        replacements.set(torch.utils, "swap_tensors", swap)
        # Loading data takes little memory and much of it depends on values (shuffling): that is real.
        batches: Any = data.dataloader._BaseDataLoaderIter
        replacements.set(batches, "__next__", self._for_real(batches.__next__))
        iterator = data.DataLoader._get_iterator
        replacements.set(data.DataLoader, "_get_iterator", self._for_real(iterator))
        # A backward may run parts of the program: what is checkpointed, hooks.
        engine: Any = autograd
        run_backward = engine._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            with self._calls.resumed():
                return run_backward(*args, **kwargs)

        replacements.set(engine, "_engine_run_backward", run)
        # Optimizers and gradient clipping work on lists of tensors, of these types. It takes more memory.
        for types in (_optimizers_types, _foreach_utils._foreach_supported_types):
            types.append(FakeTensor)
            undo.callback(types.remove, FakeTensor)
        # There are no values to write.
        replacements.set(torch, "save", self._save)
        # Whether it found infinities is a number, and the stand-in for numbers would say so.
        replacements.set(torch.amp.GradScaler, "_maybe_opt_step", _always_step)
        # Operators of a compiled model would not be seen.
        dynamo = torch._dynamo.config
        undo.callback(setattr, dynamo, "disable", dynamo.disable)
        dynamo.disable = True

    def _save(self, *_: Any, **__: Any) -> None:
        self._unsaved += 1

    def _for_real(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def real(*args: Any, **kwargs: Any) -> Any:
            with self._calls.paused():
                return function(*args, **kwargs)

        return real

    def _remove_calls(self) -> None:
        """Take our mode off this thread's stack; modes that were pushed after it stay."""
        modes: Any = overrides
        above = []
        while (mode := modes._get_current_function_mode()) is not None and mode is not self._calls:
            above.append(modes._pop_mode())
        if mode is not None:
            modes._pop_mode()
        for mode in reversed(above):
            modes._push_mode(mode)


def _always_step(
    _scaler: Any, optimizer: torch.optim.Optimizer, _state: Any, *args: Any, **kwargs: Any
) -> Any:
    return optimizer.step(*args, **kwargs)


def _told(what: str, lines: Counter[str]) -> str:
    """How often, and where first."""
    times, first = sum(lines.values()), next(iter(lines))
    return f"{what} {times} times, which simulated tensors do not have, first at {first}"
