"""A format that makes its own file in the folder it is given."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.mark.parametrize("folder", ["log", "log/", "deep/log"])
def test_a_recording_is_written_into_a_log_folder(memexport_cli, recording, tmp_path, folder):
    result = memexport_cli("convert", recording, "-o", folder, "--to", "tensorboard")
    assert result.exit_code == 0
    assert f"Wrote {folder}. Look at it: tensorboard --logdir {folder}" in result.stderr
    found = EventAccumulator(str(tmp_path / folder)).Reload()
    assert any(tag.startswith("memexport/peak_bytes/") for tag in found.Tags()["scalars"])


def test_a_folder_with_other_runs_is_no_obstacle_but_the_same_run_is(memexport_cli, recording, tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "events.out.tfevents.1.other").write_bytes(b"")
    assert memexport_cli("convert", recording, "-o", "log/", "--to", "tensorboard").exit_code == 0
    again = memexport_cli("convert", recording, "-o", "log/", "--to", "tensorboard")
    assert (again.exit_code, "--force" in again.stderr) == (4, True)
    forced = memexport_cli("convert", recording, "-o", "log/", "--to", "tensorboard", "--force")
    assert forced.exit_code == 0
    assert len(list((tmp_path / "log").iterdir())) == 2


@pytest.mark.parametrize("arguments", [(), ("-o", "-")], ids=["no output", "stdout"])
def test_without_a_folder_it_says_that_it_needs_one(memexport_cli, recording, arguments):
    result = memexport_cli("convert", recording, "--to", "tensorboard", *arguments)
    assert result.exit_code == 2
    assert "hint: -o DIR/" in result.stderr
