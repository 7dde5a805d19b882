"""Put the table of formats, as the registry has it, between the markers in README.md.

python tools/readme_tables.py           writes it
python tools/readme_tables.py --check   exits with 1 if what is there is not what the registry gives
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- formats -->", "<!-- /formats -->"


class MarkerError(Exception):
    """The text has no place for the table, or more than one."""


def formats_table() -> str:
    """What `memexport formats --markdown` prints."""
    command = [sys.executable, "-m", "memexport", "formats", "--markdown"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    return printed.stdout.strip()


def with_table(text: str, table: str) -> str:
    """The text with the table between its markers, in place of what was there.

    Raises:
        MarkerError: each marker must be there once, the opening one first.
    """
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            raise MarkerError(f"{marker} must be there once, and is there {text.count(marker)} times")
    before, _, rest = text.partition(BEGIN)
    _, closing, after = rest.partition(END)
    if not closing:
        raise MarkerError(f"{END} stands before {BEGIN}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the table is current")
    parser.add_argument("readme", type=Path, nargs="?", default=README)
    options = parser.parse_args(arguments)
    text = options.readme.read_text(encoding="utf-8")
    try:
        wanted = with_table(text, formats_table())
    except MarkerError as error:
        print(f"{options.readme.name}: {error}", file=sys.stderr)
        return 1
    if text == wanted:
        return 0
    if options.check:
        print(
            f"{options.readme.name}: the table of formats is not what the registry gives; "
            "run python tools/readme_tables.py",
            file=sys.stderr,
        )
        return 1
    options.readme.write_text(wanted, encoding="utf-8")
    print(f"wrote {options.readme}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
