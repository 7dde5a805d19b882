"""Where metrics come from, as OpenTelemetry says it: the attributes of a process."""

from __future__ import annotations

import functools
import importlib.metadata
import uuid
from collections.abc import Mapping
from typing import Final

from memexport.exporters._otel_metrics import SCOPE
from memexport.model import RecordingInfo

_NAMESPACE: Final = uuid.UUID("4d2c5b60-5c5a-4e0e-9d0a-6d656d657870")

Facts = Mapping[str, str | int]


@functools.cache
def version() -> str:
    """The version of memexport; empty where it is not installed."""
    try:
        return importlib.metadata.version(SCOPE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def process_facts(info: RecordingInfo, rank: int) -> Facts:
    """What is known of the process of this rank (−1: not known). Of several processes, `info` is of one."""
    is_this = rank in (-1, info.rank if info.rank is not None else rank)
    facts = {
        "service.name": SCOPE,
        "host.name": info.host if is_this else None,
        "process.pid": info.pid if is_this else None,
        "memexport.rank": rank if rank >= 0 else None,
        "memexport.local_rank": info.local_rank if is_this else None,
        "memexport.world_size": info.world_size,
    }
    return {name: value for name, value in facts.items() if value is not None}


def recorded_facts(info: RecordingInfo, rank: int) -> Facts:
    """The resource of a recording's metrics. The same recording always gives the same."""
    identity = f"{info.host}/{info.pid}/{info.start_time_unix_ns}/{rank}"
    return {
        **process_facts(info, rank),
        "service.instance.id": str(uuid.uuid5(_NAMESPACE, identity)),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": SCOPE,
        "telemetry.sdk.version": version(),
    }
