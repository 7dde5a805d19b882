"""`memexport.integrations.lightning` under the real Trainer."""

from __future__ import annotations

import csv
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, TensorDataset

import memexport
from memexport.errors import UsageError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning
    import pytorch_lightning
    from lightning.pytorch.loggers import CSVLogger

    from memexport.integrations.lightning import MemoryCallback

pytestmark = pytest.mark.filterwarnings("ignore")

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}


def data():
    generator = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(64, 16, generator=generator)), batch_size=8)


def module_of(base):
    """A LightningModule of that package; `fails_at` is the batch at which it raises."""

    class Regression(base):
        def __init__(self, fails_at=None):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 1))
            self.fails_at = fails_at

        def training_step(self, batch, index):
            if index == self.fails_at:
                raise LookupError("no more data")
            return self.net(batch[0]).pow(2).mean()

        def validation_step(self, batch, index):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    return Regression


Regression = module_of(lightning.LightningModule)


def fit(callback, steps=4, model=None, validation=None, **options):
    """Train, and give the model back."""
    model = model or Regression()
    callbacks = [callback] if callback is not None else []
    trainer = lightning.Trainer(callbacks=callbacks, max_steps=steps, **{**QUIET, **options})
    torch.manual_seed(1)
    trainer.fit(model, data(), validation)
    return model


def test_a_fit_is_recorded_with_the_names_of_the_module(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx", tmp_path / "run.pftrace"])
    fit(callback)
    with memexport.open(tmp_path / "run.memx") as recording:
        summary = recording.summary()
    modules = {row.module for row in summary.top_operators}
    assert {"net.0", "net.3"} <= modules
    assert [marker.name for marker in summary.markers].count("step") == 4
    assert summary.to_dict() == {**callback.tracker.summary().to_dict(), "duration_ns": summary.duration_ns}
    assert (tmp_path / "run.pftrace").stat().st_size
    assert _get_current_dispatch_mode_stack() == []


def test_training_gives_the_same_with_and_without(tmp_path):
    watched, plain = fit(MemoryCallback([tmp_path / "run.memx"])), fit(None)
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_step_is_an_optimizer_step_of_several_batches(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    fit(callback, steps=2, accumulate_grad_batches=3)
    markers = [marker.name for marker in callback.tracker.summary().markers]
    assert markers.count("step") == 2
    with memexport.open(tmp_path / "run.memx") as recording:
        strings = recording.tables.strings
        in_first = sum(
            int(((b.name == strings.find("forward")) & (b.step == 0)).sum()) for b in recording.batches()
        )
    assert in_first == 3


def test_markers_say_when_validation_runs(tmp_path):
    callback = MemoryCallback()
    fit(callback, steps=2, validation=data(), val_check_interval=2, num_sanity_val_steps=0)
    markers = [marker.name for marker in callback.tracker.summary().markers]
    assert markers.index("validation") < markers.index("validation ends")


def test_an_exception_is_the_last_marker_and_reaches_the_caller(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    with pytest.raises(LookupError, match="no more data"):
        fit(callback, model=Regression(fails_at=2))
    with memexport.open(tmp_path / "run.memx") as recording:
        names = [marker.name for marker in recording.summary().markers]
    assert "exception: LookupError" in names
    assert names.count("step") == 2
    assert _get_current_dispatch_mode_stack() == []


def test_a_second_fit_gets_a_file_of_its_own(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    fit(callback)
    first = (tmp_path / "run.memx").read_bytes()
    fit(callback)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-fit2.memx", "run.memx"]
    assert (tmp_path / "run.memx").read_bytes() == first


def test_the_peak_since_the_last_time_goes_to_the_loggers(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"], log_peak=True)
    fit(callback, steps=4, logger=CSVLogger(tmp_path), log_every_n_steps=2)
    with (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("memexport/peak_bytes/cpu")]
    assert [row["step"] for row in rows] == ["1", "3"]
    highest = callback.tracker.summary().devices["cpu"].allocated.peak
    assert max(float(row["memexport/peak_bytes/cpu"]) for row in rows) == highest


def test_a_file_that_cannot_be_opened_costs_a_warning(tmp_path, caplog):
    fit(MemoryCallback([tmp_path / "missing" / "run.memx"]))
    assert "memexport does not record" in caplog.text


def test_what_is_wrong_with_the_options_is_said_at_once():
    with pytest.raises(UsageError, match="does not say which format"):
        MemoryCallback(["run.unknown"])


def test_only_the_steps_that_were_asked_for_are_recorded_and_the_trainers_steps_count(tmp_path):
    """Of two batches each, as the gradients of two are accumulated."""
    callback = MemoryCallback([tmp_path / "run.memx"], every=2, window=1, max_bytes="1MiB")
    fit(callback, steps=4, accumulate_grad_batches=2)
    steps = steps_with_operators(tmp_path / "run.memx")
    assert set(steps) == {0, 2}
    assert steps[0] > 30, "two forwards, two backwards and an optimizer"


def test_an_error_of_memory_in_a_fit_is_written_where_it_was_asked_for(tmp_path):
    """With the note on the error, which ends the training as it would have."""
    callback = MemoryCallback(on_oom=tmp_path / "oom", oom_events=1_000)
    model = Regression()
    model.training_step = lambda *_: torch.empty(1 << 60)
    with pytest.raises(RuntimeError) as raised:
        fit(callback, model=model)
    assert any("memexport" in note for note in raised.value.__notes__)
    (written,) = (tmp_path / "oom").glob("*.memx")
    with memexport.open(written) as recording:
        assert recording.summary().ooms == 1


def steps_with_operators(path):
    """How many operators each recorded step has."""
    with memexport.open(path) as recording:
        rows = recording.to_pandas()
    rows = rows[(rows.kind == "operator") & rows.step.notna()]
    return rows.groupby("step").size().to_dict()


def test_the_trainer_of_pytorch_lightning_takes_it_too(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    trainer = pytorch_lightning.Trainer(callbacks=[callback], max_steps=2, **QUIET)
    trainer.fit(module_of(pytorch_lightning.LightningModule)(), data())
    assert [marker.name for marker in callback.tracker.summary().markers].count("step") == 2
