"""One rank of a job of many, alone: its collectives return at once, with buffers of the right size."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import torch

from memexport.errors import UsageError
from memexport.tracker.replaced import Replacements

MOST_PER_NODE: Final = 8


def environment(world_size: int) -> dict[str, str]:
    """What a launcher such as torchrun sets for the first of these ranks, on nodes of up to 8."""
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(min(world_size, MOST_PER_NODE)),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
    }


def set_environment(world_size: int) -> Callable[[], None]:
    """Set them; the function that is returned sets back what was there before."""
    ours = environment(world_size)
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)

    def set_back() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return set_back


def stand_in(replacements: Replacements, world_size: int) -> None:
    """Let `torch.distributed` make groups of torch's backend "fake", whatever backend is asked for.

    Raises:
        UsageError: this torch has no `torch.distributed`.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this build of torch has no torch.distributed", hint="leave out world_size")
    from torch.distributed import distributed_c10d, utils
    from torch.nn.parallel import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group, new_group = dist.init_process_group, dist.new_group

    def init(*_: Any, **options: Any) -> None:
        rank = int(options.get("rank", -1))
        init_process_group("fake", rank=max(rank, 0), world_size=world_size, store=FakeStore())

    def group(*args: Any, **options: Any) -> Any:
        options.pop("backend", None)
        options.pop("pg_options", None)
        return new_group(*args[:2], **options)

    answers: dict[str, Any] = {
        "init_process_group": init,
        "new_group": group,
        "is_nccl_available": lambda: True,
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object,
        "broadcast_object_list": _nothing,
    }
    # They compare values across ranks.
    for owner in (utils, distributed):
        for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
            replacements.set(owner, name, _nothing)
    parallel: Any = distributed.DistributedDataParallel
    make = parallel.__init__

    def make_with_hook(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        # The backend "fake" has no result, which the default hook expects. Annotations, torch would check.
        self.register_comm_hook(None, lambda _, bucket: _reduced(bucket))

    replacements.set(parallel, "__init__", make_with_hook)
    for name, answer in answers.items():
        replacements.set(dist, name, answer)
        replacements.set(distributed_c10d, name, answer)


def _reduced(bucket: Any) -> Any:
    """The gradients in the bucket, at once."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _nothing(*_: Any, **__: Any) -> None:
    """What the first rank broadcasts, it has."""


def _all_gather_object(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    """Every rank has what this one has."""
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
    if object_gather_list is not None:
        _all_gather_object(object_gather_list, obj)
