"""Ask Perfetto's own importer what it did not understand of a trace; for all else there is `memexport query`.

    python tools/trace_processor.py TRACE

Prints a line of JSON for each import problem, and exits with 1 if there is one.
"""

from __future__ import annotations

import json
import sys

from memexport.trace_processor import IMPORT_PROBLEMS, TraceProcessor


def main() -> int:
    """The exit code."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with TraceProcessor() as processor:
        problems = processor.load(sys.argv[1]).import_problems()
    for problem in problems:
        print(json.dumps(problem))
    return 1 if problems else 0


__all__ = ["IMPORT_PROBLEMS", "TraceProcessor"]

if __name__ == "__main__":
    sys.exit(main())
