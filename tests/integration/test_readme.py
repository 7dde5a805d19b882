"""What the README shows works: its Python blocks run, and its memexport commands.

From top to bottom, in one folder. Every ```python block runs, all in one namespace. In ```bash and ```console
blocks every line that starts with `memexport` (or `$ memexport`) runs; others (make, pip, git) do not, nor
does `memexport view`, which waits for a browser.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
README = TESTS.parent / "README.md"
# A fence inside a list is indented, and so is what is in it.
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
PYTHON, SHELL = ("python",), ("bash", "console")
SECONDS = 120
SAMPLES = {
    "old.pickle": "legacy_conv.pickle",
    "snapshot.pickle": "snapshots/silmont_mem_snapshot.pickle",
    "trace.json.gz": "kineto/torch-2.13-cpu.json.gz",
}
SCRIPT = """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Block(NamedTuple):
    """A fenced block: its language, the line its code starts on, and the code."""

    language: str
    line: int
    code: str


def blocks(text):
    """The Python and shell blocks, in order."""
    for found in BLOCK.finditer(text):
        indent = found["indent"]
        code = "".join(line.removeprefix(indent) for line in found["code"].splitlines(keepends=True))
        if found["language"] in (*PYTHON, *SHELL):
            yield Block(found["language"], text.count("\n", 0, found.start("code")) + 1, code)


def commands(block):
    """The memexport commands in a shell block; one that goes on after a backslash is one."""
    for line in block.code.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ").strip()
        if command.startswith("memexport ") and not command.startswith("memexport view "):
            yield command


def run_readme(path, folder):
    """Run everything; how many Python blocks and how many commands there were.

    Raises:
        AssertionError: a command failed. What a Python block raises goes through.
    """
    namespace = {"__name__": "__main__"}
    counts = {"python": 0, "memexport": 0}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language in PYTHON:
            counts["python"] += 1
            # The empty lines make a traceback's line numbers those of the README.
            exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
            continue
        for command in commands(block):
            counts["memexport"] += 1
            run_command(command, folder)
    return counts


def run_command(command, folder):
    """Run it in a shell, as a reader would, but with this Python's memexport."""
    function = f'memexport() {{ "{sys.executable}" -m memexport "$@"; }}'
    shell = ["bash", "-o", "pipefail", "-c", f"{function}\n{command}"]
    done = subprocess.run(shell, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader is: with a training script of their own, recordings of it, and files from before."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for name, sample in SAMPLES.items():
        shutil.copy(TESTS / "data" / sample, tmp_path / name)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        run_command(f"memexport run -o run-{rank}.memx train.py", tmp_path)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_everything_that_the_readme_shows_runs(folder):
    counts = run_readme(README, folder)
    assert counts["python"] >= 1
    assert counts["memexport"] >= 1


LIKE_A_README = """\
# A project

```python
import memexport
before = memexport.convert("old.pickle", "new.memx")
```

```bash
git clone nowhere && exit 1
memexport summary new.memx | head -n 3   # a pipe and a comment
memexport convert new.memx \\
    -o new.jsonl
```

1. In a list:

   ```console
   $ memexport info new.memx
   events  26
   ```

```python
after = memexport.open("new.memx")
assert before is not None
after.close()
```

```text
memexport is not run here
```
"""


def test_blocks_and_commands_run_in_order_in_one_namespace_and_folder(folder):
    readme = folder / "README.md"
    readme.write_text(LIKE_A_README)
    assert run_readme(readme, folder) == {"python": 2, "memexport": 3}
    assert {"new.memx", "new.jsonl"} <= {path.name for path in folder.iterdir()}


def test_a_command_that_fails_is_reported_with_what_it_said(folder):
    readme = folder / "README.md"
    readme.write_text("```bash\nmemexport info missing.memx\n```\n")
    with pytest.raises(AssertionError, match=r"(?s)memexport info missing\.memx.*missing"):
        run_readme(readme, folder)


def test_a_python_block_that_fails_is_reported_with_its_line(folder):
    readme = folder / "README.md"
    readme.write_text("# A project\n\n```python\nfine = 1\nraise LookupError\n```\n")
    with pytest.raises(LookupError) as raised:
        run_readme(readme, folder)
    assert raised.traceback[-1].lineno + 1 == 5


def test_a_script_in_the_readers_folder_can_be_run(folder):
    run_command("memexport run -o run.memx train.py", folder)
    assert (folder / "run.memx").exists()
