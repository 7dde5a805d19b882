"""What a recording says of the process that makes it."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping

import torch

import memexport
from memexport.model import RecordingInfo
from memexport.tracker.ranks import process_ranks


def describe_process(options: Mapping[str, object]) -> RecordingInfo:
    """This process, and the recorder's settings."""
    process = process_ranks()
    return RecordingInfo(
        producer="memexport",
        producer_version=memexport.__version__,
        start_time_unix_ns=time.time_ns(),
        host=process.host,
        pid=process.pid,
        rank=process.rank,
        local_rank=process.local_rank,
        world_size=process.world_size,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        command_line=tuple(getattr(sys, "orig_argv", sys.argv)),
        options={name: str(value).lower() for name, value in options.items()},
    )
