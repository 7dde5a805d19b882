"""Pickles as torch's MemoryTracker writes them, and such as nobody should write."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data"
LEGACY_CONV = DATA / "legacy_conv.pickle"


def stats(*operators: tuple[str, float], markers: Any = None, **changes: Any) -> dict[str, Any]:
    """What save_stats pickles, with the same value for all three counters."""
    counters = {}
    for key in ("memories_allocated", "memories_active", "memories_reserved"):
        counters[key] = defaultdict()
        counters[key].update(enumerate(operators))
    made = defaultdict(int, markers or {}) if markers is None or isinstance(markers, dict) else markers
    return {**counters, "markers": made, "num_alloc_retries": 0, **changes}


def pickled(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    """As save_stats does."""
    return pickle.dumps(value, protocol)
