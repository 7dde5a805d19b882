"""The function that runs for every operator: logs it, and the storages that it made.

It is written to be short at run time: what it needs is in its closure, the commonest case (an operator of the
CPU returns one plain tensor) is in it as a whole, and everything else is looked at by methods.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from memexport.tracker import rows
from memexport.tracker.claims import Claims
from memexport.tracker.copies import Sources
from memexport.tracker.details import Details
from memexport.tracker.dispatch_mode import DispatchMode, Operator
from memexport.tracker.dtensors import Unwrapping
from memexport.tracker.inside import Inside
from memexport.tracker.rows import Labels
from memexport.tracker.running import Running
from memexport.tracker.storages import (
    PLAIN,
    RELEASE_AFTER_ALLOCATION,
    StorageRef,
    Storages,
    storage_of,
    tensors_in,
)
from memexport.tracker.threads import Thread, graph_task


class OperatorLog:
    """Logs operators, and the storages that they return.

    Args:
        labels: what the rows' codes and contexts stand for.
        running: what is running in each thread.
        storages: what is alive.
        claims: is told of collectives and gradients.
        log_bytes: where rows go.
        inside: measures what operators take inside; None if nobody asked.
    """

    def __init__(
        self,
        labels: Labels,
        running: Running,
        storages: Storages,
        claims: Claims,
        log_bytes: bytearray,
        inside: Inside | None,
    ) -> None:
        self._labels = labels
        self._running = running
        self._storages = storages
        self._claims = claims
        self._log_bytes = log_bytes
        self._inside = inside
        self._sources = Sources(storages, running)
        self._operators: dict[int, Operator] = {}

    def dispatch_function(
        self,
        mode: DispatchMode,
        raised: Callable[[BaseException, int, int, int], None],
        fail: Callable[[Exception], None],
    ) -> Callable[..., Any]:
        """The function for this mode to call.

        `raised` is told of an error that an operator raised, the operator's code and context, and when it
        ended; `fail` of an error of our own.
        """
        running, operators, storages = self._running, self._operators, self._storages
        live, allocators = storages.live, storages.allocators
        counters_row, same_row = allocators.counters_row, allocators.same_counters_row
        risen, log_risen = allocators.risen, allocators.log_risen
        push, pack = self._log_bytes.extend, rows.ROW.pack
        threads, current_thread = running.threads, threading.get_ident
        clock, current_task = time.perf_counter_ns, graph_task
        pack_two, next_number = rows.TWO_ROWS.pack, storages.next_number
        plain, new_ref, released = PLAIN, StorageRef, storages.released
        unwrapping = Unwrapping(lambda change: mode.call(change(mode.dispatch)))

        def dispatch(
            _mode: DispatchMode, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if types and unwrapping.is_left_to_dtensor(types):
                return NotImplemented
            try:
                thread = threads.get(current_thread()) or running.thread()
                operator = operators.get(id(func)) or self._operator(func)
                task = current_task()
                context = thread.context if task == thread.task else running.context(thread, task)
            except Exception as error:
                fail(error)
                return func(*args, **(kwargs or {}))
            thread.net = 0
            began = clock()
            try:
                result = operator.call(*args, **kwargs) if kwargs else operator.call(*args)
            except BaseException as error:
                ended = clock()
                self._look_at_allocators(operator, context, ended, fail)
                push(pack(operator.code, context, began, ended, thread.net))
                raised(error, operator.code, context, ended)
                raise
            ended = clock()
            try:
                if type(result) in plain and not operator.watched:
                    storage = result.untyped_storage()
                    key = id(storage)
                    known = live.get(key)
                    if known is None:
                        if result.is_cpu:
                            # What `Storages.found` does, and the operator's row with it: the commonest case.
                            size, number, code = storage.nbytes(), next_number(), operator.allocation_code
                            live[key] = found = new_ref(storage, released)
                            found.device = 0
                            found.size = size
                            found.release = (key, code + RELEASE_AFTER_ALLOCATION, number)
                            net = thread.net + size
                            own = operator.code
                            push(
                                pack_two(code, context, ended, size, number, own, context, began, ended, net)
                            )
                            return result
                        known = storages.found(
                            storage, result, operator.allocation_code, context, ended, thread
                        )
                else:
                    known = self._look_through(result, args, operator, context, ended, thread)
                if thread.inside:
                    push(pack(operator.inside_code, context, ended, thread.inside, 0))
                    thread.inside = 0
                    ended = clock()  # the sample holds until here
                if known is None:
                    push(pack(operator.code, context, began, ended, thread.net))
                else:
                    device, counted = known.device, b""
                    if device:
                        counted = (same_row if operator.is_view else counters_row)(device, context)
                        if device in risen:
                            ended = log_risen(device, operator.inside_code, context, ended)
                    push(pack(operator.code + device, context, began, ended, thread.net) + counted)
            except Exception as error:
                if type(result) in plain and storage_of(result) is None:
                    push(pack(operator.code, context, began, ended, thread.net))
                else:
                    fail(error)
            return result

        return dispatch

    def _operator(self, function: Any) -> Operator:
        operator = Operator(function, self._labels)
        self._sources.watch(str(function), operator)
        if self._inside is not None:
            self._inside.watch(str(function), operator)
        return self._operators.setdefault(id(function), operator)

    def _look_at_allocators(
        self, operator: Operator, context: int, now: int, fail: Callable[[Exception], None]
    ) -> None:
        """After an operator that raised, of which nobody knows the device."""
        try:
            self._storages.allocators.look_at_all(operator.inside_code, context, now)
        except Exception as error:
            fail(error)

    def _look_through(
        self, result: Any, args: tuple[Any, ...], operator: Operator, context: int, now: int, thread: Thread
    ) -> StorageRef | None:
        """Everything but a lone plain tensor: find new and resized storages; returns one of them."""
        known = None
        if operator.collective:
            self._claims.collective(operator.collective, args)
        for tensor in (result,) if type(result) in PLAIN else tensors_in(result):
            known = self._look_at(tensor, operator, context, now, thread) or known
        if known is None:  # no tensor came out: the device is that of what went in
            for tensor in tensors_in(args):
                known = self._storages.known(tensor)
                if known is not None:
                    break
        return known

    def _look_at(
        self, tensor: torch.Tensor, operator: Operator, context: int, now: int, thread: Thread
    ) -> StorageRef | None:
        storage = storage_of(tensor)
        if storage is None:
            return None
        known = self._storages.live.get(id(storage))
        if known is not None and operator.watched and max(known.size, 0) != storage.nbytes():
            self._storages.released(known)
            known = None
        if known is None:
            known = self._storages.found(storage, tensor, operator.allocation_code, context, now, thread)
        if known is not None and thread.accumulates and context == thread.backward_context:
            self._claims.accumulated(known, context)
        return known


def detailed(
    dispatch: Callable[..., Any],
    details: Details,
    running: Running,
    push: Callable[[bytes], None],
    fail: Callable[[Exception], None],
) -> Callable[..., Any]:
    """The same function, with what was asked for of each call logged before it."""
    pack = rows.ROW.pack

    def logged(mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        try:
            inputs, stack = details.of_call(args, kwargs)
            push(pack(rows.DETAILS, running.thread().context, inputs, stack, 0))
        except Exception as error:
            fail(error)
        return dispatch(mode, func, types, args, kwargs)

    return logged
