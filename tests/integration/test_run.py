"""`memexport run`: the program notices nothing, and its models are recorded."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import memexport

MODEL = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=2):
    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run(*arguments: str, cwd: Path, python: bool = False) -> subprocess.CompletedProcess[str]:
    """The program under `memexport run -o run.memx --force`, or under plain python."""
    memexport_run = ["-m", "memexport", "run", "-o", "run.memx", "--force"]
    command = [sys.executable, *([] if python else memexport_run), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def same_as_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it both ways: stdout and exit code are equal, and stderr but for memexport's closing lines."""
    plain, tracked = run(*arguments, cwd=cwd, python=True), run(*arguments, cwd=cwd)
    assert tracked.stdout == plain.stdout
    assert tracked.returncode == plain.returncode
    assert tracked.stderr.startswith(plain.stderr)
    return tracked


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_every_model_and_optimizer_of_a_script_is_recorded(script: Path, tmp_path: Path) -> None:
    script.write_text(MODEL + "train(steps=3)\nprint('trained')\n")
    done = same_as_python("train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run.memx" in done.stderr
    with memexport.open(tmp_path / "run.memx") as recording:
        summary = recording.summary().to_dict()
        strings = list(recording.tables.strings)
    assert summary["steps"] == 3
    assert summary["warnings"] == []
    assert {"0", "2", "Sequential", "optimizer", "backward"} <= set(strings)


def test_a_script_that_raises_shows_pythons_traceback_and_exits_1(script: Path, tmp_path: Path) -> None:
    script.write_text(MODEL + "train()\ndef deep():\n    raise ValueError('deliberate')\ndeep()\n")
    done = same_as_python("train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "memexport" not in done.stderr.partition("ValueError: deliberate")[0]
    with memexport.open(tmp_path / "run.memx") as recording:
        markers = [marker["name"] for marker in recording.summary().to_dict()["markers"]]
    assert "exception: ValueError" in markers


@pytest.mark.parametrize("code", ["3", "0", "None", "'a reason'", "True"])
def test_a_script_that_exits_exits_with_its_code(script: Path, tmp_path: Path, code: str) -> None:
    script.write_text(MODEL + f"train()\nimport sys\nsys.exit({code})\n")
    same_as_python("train.py", cwd=tmp_path)
    with memexport.open(tmp_path / "run.memx") as recording:
        assert recording.summary().to_dict()["steps"] == 2


def test_options_after_the_script_are_the_scripts(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import argparse, sys\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('-o'); parser.add_argument('--force', action='store_true')\n"
        "parser.add_argument('rest', nargs='*')\n"
        "print(parser.parse_args(), sys.argv, __name__, __file__, sys.path[0])\n" + MODEL + "train()\n"
    )
    same_as_python("train.py", "-o", "theirs.memx", "--force", "one", "two", cwd=tmp_path)
    assert not (tmp_path / "theirs.memx").exists()
    assert run("train.py", "--wrong", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_workers_work(script: Path, tmp_path: Path, start: str) -> None:
    script.write_text(
        MODEL + "from torch.utils.data import DataLoader, Dataset\n"
        "class Data(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return torch.full((4,), float(index)).sin()\n"
        "if __name__ == '__main__':\n"
        f"    loader = DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context='{start}')\n"
        "    for batch in loader:\n"
        "        model(batch).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "    print(batch.shape)\n"
    )
    done = same_as_python("train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with memexport.open(tmp_path / "run.memx") as recording:
        summary = recording.summary().to_dict()
    assert summary["steps"] == 2
    assert "aten.sin.default" not in {operator["operator"] for operator in summary["top_operators"]}
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".memx"] == ["run.memx"]


def test_classes_of_the_script_can_be_pickled(script: Path, tmp_path: Path) -> None:
    script.write_text(
        MODEL + "import pickle\nclass Own: pass\nprint(type(pickle.loads(pickle.dumps(Own()))))\ntrain()\n"
    )
    assert "__main__.Own" in same_as_python("train.py", cwd=tmp_path).stdout


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys\nfrom . import __name__ as parent\nprint(parent, sys.argv, __name__, __spec__.name)\n"
        + MODEL
        + "train()\n"
    )
    done = run("-m", "package.train", "--option", cwd=tmp_path)
    assert done.stdout == run("-m", "package.train", "--option", cwd=tmp_path, python=True).stdout != ""
    assert done.returncode == 0
    assert run("-m", "package.missing", cwd=tmp_path).returncode == 1


def test_torch_is_imported_by_the_script_and_not_before_it(script: Path, tmp_path: Path) -> None:
    script.write_text("import sys\nprint('torch' in sys.modules, 'numpy' in sys.modules)\n")
    done = same_as_python("train.py", cwd=tmp_path)
    assert done.stdout == "False False\n"
    assert not (tmp_path / "run.memx").exists()
    assert "torch" in done.stderr


def test_an_interrupted_script_dies_of_the_interrupt_and_its_recording_is_complete(
    script: Path, tmp_path: Path
) -> None:
    script.write_text(MODEL + "train()\nprint('ready', flush=True)\nimport time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "memexport", "run", "-o", "run.memx", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    with memexport.open(tmp_path / "run.memx") as recording:
        assert recording.summary().to_dict()["warnings"] == []


def test_a_file_that_exists_is_refused_before_the_script_runs(script: Path, tmp_path: Path) -> None:
    script.write_text("print('ran')\n")
    (tmp_path / "old.memx").write_text("precious")
    command = [sys.executable, "-m", "memexport", "run", "-o", "old.memx", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert "--force" in done.stderr
    assert (tmp_path / "old.memx").read_text() == "precious"


def test_a_script_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    done = run("missing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "missing.py" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_script_with_a_syntax_error_shows_it_as_python_does(script: Path, tmp_path: Path) -> None:
    script.write_text("def broken(:\n")
    assert same_as_python("train.py", cwd=tmp_path).returncode == 1


def test_a_folder_with_a_main_runs(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(
        "import sys\nprint(sys.argv, __name__)\n" + MODEL + "train()\n"
    )
    assert same_as_python("app", "argument", cwd=tmp_path).returncode == 0
