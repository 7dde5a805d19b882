"""Calls of a program that runs on simulated tensors, on their way into torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import _device_constructors

_plain_attention: Final = functional.scaled_dot_product_attention
_HALVES: Final = (torch.float16, torch.bfloat16)
_MOST_FLASH_WIDTH: Final = 256
_STAND_INS: Final = ("memexport.tracker.fake_calls", "memexport.tracker.fake_cuda")
_HOST_ONLY: Final[frozenset[Any]] = frozenset(
    {torch.arange, torch.linspace, torch.logspace, torch.randperm, torch.tensor, torch.as_tensor}
    | {torch.asarray, torch.scalar_tensor}
)
"""Functions whose results stay on the CPU by default: they are small, and programs read their values."""


class SimulatedCalls(TorchFunctionMode):
    """Answers what a simulated tensor cannot, and puts on the simulated device what belongs there.

    Attributes:
        default_device: where tensors are made of which the program does not say where; None: on the CPU.
        means_host: an operator that is dispatched now and says "cpu" means it. Else torch's C++ code read it
            off a simulated tensor, see `SimulatedTensors`.
        autocasts: the call was made under autocast for the simulated device.
        count: of the calls until now.
        leaves: if it autocasts, by id the nodes that accumulate the gradients of its arguments. Autograd
            would make them while autocast runs.

    Args:
        device: the simulated accelerator; None if there is none.
    """

    def __init__(self, device: torch.device | None) -> None:
        super().__init__()
        self._device = device
        self.default_device = device
        self.means_host = True
        self.autocasts = False
        self.count = 0
        self.leaves: dict[int, Any] = {}
        self._paused = False
        self._constructors = frozenset(_device_constructors()) - _HOST_ONLY
        self._choosers = frozenset({*_device_constructors(), torch.Tensor.cpu})
        self._answers: dict[Any, Callable[..., Any]] = {
            torch.Tensor.numpy: _numpy,
            torch.Tensor.record_stream: lambda *_, **__: None,
        }
        if device is not None:
            self._answers[torch.Tensor.to] = self._to
            self._answers[torch.Tensor.cpu] = self._cpu
            self._answers[torch.Tensor.cuda] = self._cuda
            self._answers[_plain_attention] = attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer the call, or send it on with a device that can be simulated."""
        kwargs = kwargs or {}
        # An operator is on its way through the modes that see operators, ours among them: no call.
        if self._paused or isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if self._device is None:
            return self._answer(func, args, kwargs)
        args, kwargs = self._with_device(func, args, kwargs)
        before = self.means_host, self.autocasts, self.leaves
        values = (*args, *kwargs.values())
        self.count += 1
        self.means_host = func in self._choosers or _is_on_host(values)
        if torch.is_autocast_enabled(self._device.type):
            self.leaves = dict(_leaves(values)) if torch.is_grad_enabled() else {}
            self.autocasts = True
        try:
            return self._answer(func, args, kwargs)
        finally:
            self.means_host, self.autocasts, self.leaves = before

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        answer = self._answers.get(func)
        return func(*args, **kwargs) if answer is None else answer(*args, **kwargs)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is called meanwhile is real."""
        before, self._paused = self._paused, True
        try:
            with unset_fake_temporarily():
                yield
        finally:
            self._paused = before

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Calls are answered in a backward, too, though torch runs what it calls without its modes."""
        before, self.means_host = self.means_host, self._device is None
        try:
            # torch's functions for modes have no annotations.
            active = self in _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
            with contextlib.nullcontext() if active else self:
                yield
        finally:
            self.means_host = before

    def program_decides(self) -> None:
        """The program speaks of the device itself: what it does not put there is on the CPU."""
        self.default_device = None

    def _with_device(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Devices without an index become the simulated one: torch would ask the hardware for it."""
        if any(map(_names_cuda, args)) or any(map(_names_cuda, kwargs.values())):
            if called_by_program():
                self.program_decides()
            if func is torch.device:
                return args, kwargs
            args = tuple(self._device if _names_cuda(arg) else arg for arg in args)
            kwargs = {name: self._device if _names_cuda(arg) else arg for name, arg in kwargs.items()}
        elif self.default_device is not None and func in self._constructors and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": self.default_device}
        return args, kwargs

    def _cuda(self, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self.program_decides()
        return self._to(tensor, self._device)

    def _cpu(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        return self._to(tensor, "cpu", **options)

    def _to(self, tensor: torch.Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> torch.Tensor:
        """`Tensor.to`, which asks C++ code for the tensor's device, see `SimulatedTensors`."""
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        options: dict[str, Any] = {"non_blocking": non_blocking, "memory_format": layout}
        if not isinstance(tensor, FakeTensor):
            return tensor.to(device, dtype, copy=copy, **options)
        if device is None or device == tensor.fake_device:
            return tensor.to(dtype or tensor.dtype, copy=copy, **options)
        moved: torch.Tensor = _Move.apply(tensor, self, device, dtype, options)  # type: ignore[no-untyped-call]
        return moved

    def move(
        self, tensor: torch.Tensor, device: Any, dtype: torch.dtype | None, options: dict[str, Any]
    ) -> Any:
        """A copy on another device."""
        before, self.means_host = self.means_host, True
        try:
            return torch.ops.aten._to_copy.default(tensor, dtype=dtype, device=device, **options)
        finally:
            self.means_host = before


class _Move(torch.autograd.Function):
    """A copy on another device; the gradient goes back, which torch's own node leaves to C++ code."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, calls: SimulatedCalls, device: Any, dtype: Any, options: Any
    ) -> Any:
        """Go."""
        ctx.back = calls, tensor.device, tensor.dtype
        return calls.move(tensor, device, dtype, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Come back."""
        calls, device, dtype = ctx.back
        return calls.move(gradient, device, dtype, {}), None, None, None, None


def _names_cuda(value: Any) -> bool:
    """Whether this is CUDA as a program names it: "cuda", "cuda:0", `torch.device("cuda")`."""
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda" and value.index != 0


def called_by_program() -> bool:
    """Whether a stand-in that is being called was called by the program, not by torch or memexport itself."""
    frame = sys._getframe(1)
    while str(frame.f_globals.get("__name__")) in _STAND_INS and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in ("torch", "memexport")


def _leaves(values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """By id, the nodes that accumulate the gradients of simulated tensors among these values."""
    for value in values:
        if isinstance(value, FakeTensor):
            if value.requires_grad and value.is_leaf:
                yield id(value), get_gradient_edge(value).node
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)


def _is_on_host(values: Iterable[Any]) -> bool:
    """Whether a call with these arguments is about the CPU: it names it, or nothing is elsewhere."""
    elsewhere = False
    for value in values:
        if isinstance(value, FakeTensor):
            elsewhere |= value.fake_device.type == "cuda"
        elif isinstance(value, (list, tuple)):
            elsewhere |= not _is_on_host(value)
        elif isinstance(value, (str, torch.device)) and str(value) == "cpu":
            return True
    return not elsewhere


def _numpy(tensor: torch.Tensor, **_: Any) -> Any:
    """Of a simulated one zeros, which are not even there until they are written to."""
    if not isinstance(tensor, FakeTensor):
        return tensor.numpy()
    if tensor.constant is not None:
        return tensor.constant.numpy()
    return np.zeros(tuple(tensor.shape), _NUMPY_DTYPES.get(tensor.dtype, np.float32))


_NUMPY_DTYPES: Final[dict[torch.dtype, Any]] = {
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.complex64: np.complex64,
}


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """By the operator that CUDA would use: what an attention keeps for backward depends on it.

    The rules are torch 2.13's for a device of compute capability 8.0 or more (`sdp_utils.cpp`), as far as
    they follow from the arguments: flash for halves without a mask, else memory-efficient.
    """
    if query.device.type != "cuda" or query.dim() != 4:
        return _plain_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    aten: Any = torch.ops.aten
    if query.dtype in _HALVES and attn_mask is None and query.shape[-1] <= _MOST_FLASH_WIDTH:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    groups = query.shape[1] // key.shape[1] if enable_gqa else 1
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    bias = _bias(attn_mask, query, key)
    needs_backward = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    result: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_backward, dropout_p, is_causal, scale=scale
    )[0]
    return result


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """The kernel wants widths that 8 divides; torch pads them, and cuts the result."""
    width = query.shape[-1]
    if width % 8:
        query, key, value = (functional.pad(part, (0, 8 - width % 8)) for part in (query, key, value))
        scale = scale or width**-0.5
    aten: Any = torch.ops.aten
    result: torch.Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return result[..., :width] if width % 8 else result


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A mask of truth values becomes numbers to add; all are expanded, not copied, to the scores' shape."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(*query.shape[:3], key.shape[2])
