"""Logs a request for memory that failed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from memexport.model import Phase
from memexport.tracker import rows
from memexport.tracker.assemble import DEVICE_FREE, OOM
from memexport.tracker.capture import Capture
from memexport.tracker.oom.request import Request


class RequestLog:
    """Logs REQUEST rows: what becomes the MARKER "oom", and the SAMPLE "device_free" before it."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def log(self, request: Request, context: int, time_ns: int, stack: Sequence[str]) -> None:
        """Log a request that failed, and all counters before it.

        `stack` has its outermost frame first, and last the operator that asked, if one did.
        """
        capture = self._capture
        name = self.device_of(request)
        if name is None:
            capture.mark_error(OOM)
            return
        capture.storages.sample()
        device = capture.storages.device_code(torch.device(name))
        labels, pack = capture.labels, rows.ROW.pack
        size = -1 if request.bytes is None else request.bytes
        stack_id = labels.stack(stack)
        row = b""
        if request.free_bytes is not None:
            code = labels.code(rows.REQUEST, DEVICE_FREE) + device
            row += pack(code, context, time_ns, request.free_bytes, 0)
        row += pack(labels.code(rows.REQUEST, OOM) + device, context, time_ns, size, stack_id)
        capture.log_bytes.extend(row)

    def log_end(self, request: Request) -> None:
        """Log a request whose error ends the recording, where it was not seen before."""
        capture = self._capture
        context = capture.labels.context(None, int(Phase.UNKNOWN), capture.running.thread().name)
        self.log(request, context, time.perf_counter_ns(), ())

    def device_of(self, request: Request) -> str | None:
        """The device that was asked; one that is not named is the only one that it can be."""
        if request.device is not None and (request.device == "cpu" or ":" in request.device):
            return request.device
        accelerators = [device for device in self._capture.storages.devices if device.type != "cpu"]
        if request.device is not None:
            accelerators = [device for device in accelerators if device.type == request.device]
            return str(accelerators[0]) if len(accelerators) == 1 else None
        if not accelerators:
            return "cpu"
        return str(accelerators[0]) if len(accelerators) == 1 else None
