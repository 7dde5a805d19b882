"""Which process of a distributed job this is, as its launcher or its process group says."""

from __future__ import annotations

import dataclasses

import torch

from memexport.ranks import Process, this_process


def process_ranks() -> Process:
    """What the environment says; else torch's default process group, if there is one.

    Launchers that set no rank (Lightning's, `torch.multiprocessing`) tell only the group.
    """
    process = this_process()
    if process.rank is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return dataclasses.replace(process, rank=rank, world_size=world_size)
    return process
