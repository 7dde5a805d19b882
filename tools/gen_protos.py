"""Make memexport/archive/v1/archive_pb2.py and .pyi from the schema.

python tools/gen_protos.py           writes them
python tools/gen_protos.py --check   exits with 1 if what is committed is not what the schema gives
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "memexport/archive/v1/archive.proto"
GENERATED = ("memexport/archive/v1/archive_pb2.py", "memexport/archive/v1/archive_pb2.pyi")

# protoc ties its output to its own release and refuses any older runtime. What is left uses only the builder
# that every runtime since protobuf 4 has, so the committed code must not depend on who generated it last.
_TIED_TO_A_RELEASE = re.compile(
    r"^# Protobuf Python Version: .*\n"
    r"|^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\((?:.*\n)*?\)\n",
    re.MULTILINE,
)
_BARE_MAPPING = re.compile(r"(?<!as )\b_Mapping\b(?!\[)")


def generate(schemas: Path) -> dict[str, str]:
    """The text of each generated file by its path in the repository.

    Raises:
        subprocess.CalledProcessError: protoc refuses the schema.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{schemas}"]
        outputs = [f"--python_out={folder}", f"--pyi_out={folder}"]
        subprocess.run([*command, *outputs, SCHEMA], check=True, cwd=schemas)
        return {name: _normalized((Path(folder) / name).read_text()) for name in GENERATED}


def stale(generated: dict[str, str]) -> list[str]:
    """The generated files that are missing or differ from what is committed."""
    paths = {name: ROOT / name for name in generated}
    return [n for n, text in generated.items() if not paths[n].exists() or paths[n].read_text() != text]


def _normalized(text: str) -> str:
    # protoc leaves the mapping's types open, which mypy --strict does not accept.
    return _BARE_MAPPING.sub("_Mapping[str, object]", _TIED_TO_A_RELEASE.sub("", text))


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    generated = generate(ROOT / "schemas")
    changed = stale(generated)
    if arguments == ["--check"]:
        for name in changed:
            print(f"{name} is not what the schema gives; run python tools/gen_protos.py", file=sys.stderr)
        return 1 if changed else 0
    for name in changed:
        (ROOT / name).write_text(generated[name])
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
