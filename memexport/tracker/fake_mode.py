"""Simulated tensors that programs can go on with: torch's, and an answer where the program wants a value.

A simulated tensor has a shape, a dtype and a device, but no values. torch's `FakeTensorMode` refuses
`loss.item()`, `mask.nonzero()` and `if x.any()`. Here the first gives a stand-in, the second the most it
could be, and what was made up is counted, so that it can be said.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch

import memexport
from memexport.errors import UsageError
from memexport.tracker.fake_calls import SimulatedCalls
from memexport.tracker.fake_kernels import RNN_LAYER, RNN_LAYER_BACKWARD, with_both_biases, with_workspace

_aten: Final[Any] = torch.ops.aten
_DEVICE: Final[Any] = torch.ops.prim.device.default
_ITEM: Final[Any] = _aten._local_scalar_dense.default
_AUTOCAST: Final = torch._C.DispatchKey.AutocastCUDA
_is_excluded: Final = torch._C._dispatch_tls_is_dispatch_key_excluded
_CPU: Final = torch.device("cpu")
_META: Final = torch.device("meta")
_KNOWN_VALUES: Final[frozenset[Any]] = frozenset(
    {_aten.arange, _aten.linspace, _aten.logspace, _aten.randperm, _aten.eye}
    | {_aten.tril_indices, _aten.triu_indices}
)
_KNOWN_INTEGERS: Final[frozenset[Any]] = frozenset({_aten.zeros, _aten.ones, _aten.full})
MOST_KNOWN: Final = 4096
"""Tensors on the CPU of at most so many elements keep values that follow from no other tensor's: ranks of a
mesh, rates that grow from layer to layer, counters. More costs time and memory."""
_NOT_THE_USERS: Final = tuple(str(Path(str(package.__file__)).parent) for package in (torch, memexport))


class SimulatedTensors(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch's is not annotated
    """A `FakeTensorMode` under which a training program runs to its end.

    Args:
        value: what reading a number gives; a truth value is False, for most ask whether something is wrong.
        device: the simulated accelerator; None if there is none. torch's C++ code is told that its tensors
            are on the CPU: without CUDA, the autograd engine would stop at the first that is elsewhere.
            Python code, and what is recorded, sees the device; so do autocast and autograd, whose keys are
            the device's. Where C++ code makes a tensor on the device that it was told, that is corrected.
        calls: says what the operators are called for.

    Attributes:
        device: as above.
        reads: how often a value was made up, by line of the program.
        guesses: how often the shape of a result was, by line of the program.
    """

    def __init__(self, value: float, device: torch.device | None, calls: SimulatedCalls) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._value = value
        self.device = device
        self._calls = calls
        self._made: set[int] = set()
        self._made_in = 0
        self.reads: Counter[str] = Counter()
        self.guesses: Counter[str] = Counter()

    @property
    def avoid_device_init(self) -> bool:
        """Always: the device that is simulated may not be there."""
        return self.device is not None or super().avoid_device_init

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what has no values to be answered from; leave the rest to torch."""
        if func is _DEVICE and self.device is not None:
            return self._told(args[0])
        kwargs = kwargs or {}
        if self.device is not None and "device" in kwargs:
            kwargs = self._with_device(args, kwargs)
        if func is _ITEM and getattr(args[0], "constant", None) is None:
            return self._made_up(args[0])
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            return self._most(func, args, kwargs, error)
        if self._calls.autocasts:
            self._note_made(result)
        if func is RNN_LAYER:
            return with_workspace(result, args)
        if func is RNN_LAYER_BACKWARD:
            return with_both_biases(result)
        packet = getattr(func, "overloadpacket", None)
        if packet in _KNOWN_VALUES or packet in _KNOWN_INTEGERS:
            self._keep_values(result, func, args, kwargs)
        return result

    def __deepcopy__(self, _memo: object) -> SimulatedTensors:
        """The same: a copied tensor takes its attributes along, and its mode is one of them."""
        return self

    def forget(self, *tensors: torch.Tensor) -> None:
        """Drop the converter's weak references to these tensors, which would keep them from being swapped."""
        memo = self.fake_tensor_converter.meta_converter.tensor_memo
        for tensor in tensors:
            for reference in weakref.getweakrefs(tensor):
                if isinstance(reference, weakref.KeyedRef) and memo.get(reference.key) is tensor:
                    del memo[reference.key]

    def _told(self, tensor: torch.Tensor) -> torch.device:
        """The device that C++ code is told; see the class.

        Autocast wants the truth, for it casts only what is on its device. It asks for an operator's arguments
        while its key is excluded. Autograd, which must not hear it, asks then too: for leaves that have no
        node yet, and for results, which were made in the same call and have no gradient yet.
        """
        calls = self._calls
        if not calls.autocasts or not _is_excluded(_AUTOCAST):
            return _CPU
        if torch.is_grad_enabled():
            is_new = id(tensor) in self._made and not tensor.requires_grad
            if is_new or (tensor.requires_grad and tensor.is_leaf and id(tensor) not in calls.leaves):
                return _CPU
        return tensor.device

    def _note_made(self, result: Any) -> None:
        if self._made_in != self._calls.count:
            self._made_in = self._calls.count
            self._made.clear()
        results = result if isinstance(result, (tuple, list)) else [result]
        self._made.update(id(one) for one in results if isinstance(one, FakeTensor))

    def _with_device(self, args: Any, kwargs: Any) -> Any:
        """The arguments, where C++ code took the CPU for a tensor's device with that device in its place."""
        if kwargs["device"] != _CPU or self._calls.means_host or _is_on_host(args):
            return kwargs
        return {**kwargs, "device": self.device}

    def _made_up(self, tensor: torch.Tensor) -> float | int | bool | complex:
        self.reads[line_of_program()] += 1
        if tensor.dtype is torch.bool:
            return False
        if tensor.is_complex():
            return complex(self._value)
        return self._value if tensor.is_floating_point() else int(self._value)

    def _most(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """The largest that the result can be."""
        largest = _LARGEST.get(func)
        line = line_of_program()
        if largest is None:
            raise UsageError(
                f"{func} at {line} depends on values, and simulated tensors have none",
                hint="take it out of the program, or run it outside of the simulation",
            ) from error
        self.guesses[line] += 1
        return largest(*args, **kwargs)

    def _keep_values(self, result: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Compute a small tensor on the CPU for real, too: then its values can be read."""
        if (
            not isinstance(result, FakeTensor)
            or result.fake_device != _CPU
            or result.numel() > MOST_KNOWN
            or (func.overloadpacket in _KNOWN_INTEGERS and result.is_floating_point())
        ):
            return
        with no_dispatch():
            result.constant = func(*args, **kwargs)
        self.fake_tensor_converter.add_constant_storage_mapping(result)


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.fake_device.type != "cpu"


def _is_on_host(args: Any) -> bool:
    """Whether there are tensors among the arguments, all of them on the CPU."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return bool(tensors) and not any(map(_is_elsewhere, tensors))


@functools.cache
def tell_outside() -> None:
    """C++ code is told the same of our tensors while no mode is on, and for as long as they live.

    Stays when the simulation is over: one word about CUDA of a tensor that outlives it, and C++ code, on a
    machine without CUDA, ends the process. Other simulated tensors are as they were.
    """
    dispatch = FakeTensor.__torch_dispatch__

    def told(_cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            mode = args[0].fake_mode
            if isinstance(mode, SimulatedTensors) and mode.device is not None:
                return _META if mode.in_kernel_invocation else _CPU
        return dispatch(func, types, args, kwargs or {})

    FakeTensor.__torch_dispatch__ = classmethod(told)  # type: ignore[assignment]  # the same to its callers


@contextmanager
def small_values_kept() -> Iterator[None]:
    """Torch carries on with known values for tensors of up to `MOST_KNOWN` elements, not only of one."""
    before = fake_tensor.CONSTANT_NUMEL_LIMIT
    fake_tensor.CONSTANT_NUMEL_LIMIT = MOST_KNOWN
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT = before


def line_of_program() -> str:
    """Where the running program is, outside of torch and memexport: "train.py:31"."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((*_NOT_THE_USERS, "<")):
            return f"{filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def _elements(tensor: torch.Tensor, size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return tensor.new_empty((size,), dtype=dtype or tensor.dtype)


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape: torch.Size = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
    return _elements(tensor, shape.numel())


def _index(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """A mask is as many indices as it has elements, one tensor of them for each of its dimensions."""
    plain: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            plain += [_elements(index, index.numel(), torch.int64) for _ in range(index.dim())]
        else:
            plain.append(index)
    result: torch.Tensor = _aten.index.Tensor(tensor, plain)
    return result


def _unique(
    tensor: torch.Tensor,
    sorted: bool = True,  # noqa: A002, ARG001 - the operator's own name
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, ...]:
    return _unique_consecutive(tensor, return_inverse, return_counts)


def _unique_consecutive(
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,  # noqa: ARG001 - as much in any dimension
) -> tuple[torch.Tensor, ...]:
    inverse = tensor.new_empty(tensor.shape if return_inverse else (0,), dtype=torch.int64)
    counts = _elements(tensor, tensor.numel() if return_counts else 0, torch.int64)
    return _elements(tensor, tensor.numel()), inverse, counts


_LARGEST: Final[dict[Any, Callable[..., Any]]] = {
    _aten.nonzero.default: _nonzero,
    _aten.masked_select.default: _masked_select,
    _aten.index.Tensor: _index,
    _aten.allclose.default: lambda *_, **__: True,
    _aten.equal.default: lambda *_, **__: True,
    _aten._unique2.default: _unique,
    _aten.unique_consecutive.default: _unique_consecutive,
}
"""By operator, its result if every element is selected, or different from all others; all is equal."""
