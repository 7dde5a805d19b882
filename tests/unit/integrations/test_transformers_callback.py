"""`memexport.integrations.transformers` under the real Trainer; accelerate's loops under a plain Tracker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, Dataset

import memexport
from memexport.errors import UsageError

accelerate = pytest.importorskip("accelerate")
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402 - after the line above

from memexport.integrations.transformers import MemoryCallback  # noqa: E402 - likewise

pytestmark = pytest.mark.filterwarnings("ignore")


class Tokens(Dataset):
    """Sequences that are the same every time."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        tokens = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def small_model():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))


def trainer_with(callback, folder, **options):
    arguments = TrainingArguments(
        output_dir=str(folder / "output"),
        **{
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "report_to": "none",
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 2,
            **options,
        },
    )
    callbacks = [callback] if callback is not None else []
    return Trainer(
        small_model(), arguments, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=callbacks
    )


def markers(callback):
    return [marker.name for marker in callback.tracker.summary().markers]


def test_a_training_is_recorded_with_the_names_of_the_model(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    trainer_with(callback, tmp_path).train()
    with memexport.open(tmp_path / "run.memx") as recording:
        summary = recording.summary()
    modules = {row.module for row in summary.top_operators}
    assert "transformer.h.0.mlp.act" in modules
    assert markers(callback).count("step") == 4
    assert summary.devices["cpu"].peak_module is not None
    assert _get_current_dispatch_mode_stack() == []


def test_training_gives_the_same_with_and_without(tmp_path):
    trained = []
    for callback in (MemoryCallback([tmp_path / "run.memx"]), None):
        trainer = trainer_with(callback, tmp_path)
        trainer.train()
        trained.append(trainer.model)
    for one, other in zip(*(model.parameters() for model in trained), strict=True):
        assert torch.equal(one, other)


def test_a_step_is_an_optimizer_step_of_several_batches(tmp_path):
    callback = MemoryCallback()
    trainer_with(callback, tmp_path, max_steps=2, gradient_accumulation_steps=3).train()
    assert markers(callback).count("step") == 2
    assert callback.tracker.summary().steps >= 2


def test_the_peak_since_the_last_time_is_in_the_logs(tmp_path):
    callback = MemoryCallback(log_peak=True)
    trainer = trainer_with(callback, tmp_path, eval_strategy="steps", eval_steps=4)
    trainer.train()
    logged = {
        (entry["step"], "eval_loss" in entry): entry.get("memexport/peak_bytes/cpu")
        for entry in trainer.state.log_history
        if "loss" in entry or "eval_loss" in entry
    }
    assert set(logged) == {(2, False), (4, False), (4, True)}
    highest = callback.tracker.summary().devices["cpu"].allocated.peak
    assert max(logged.values()) == highest
    assert "evaluation ends" in markers(callback)


def test_put_first_its_peak_reaches_a_reporting_integration(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = MemoryCallback(log_peak=True)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(tmp_path / "tb")
    try:
        trainer = trainer_with(None, tmp_path, report_to="tensorboard")
        trainer.callback_handler.callbacks.insert(0, callback)
        trainer.train()
    finally:
        del os.environ["TENSORBOARD_LOGGING_DIR"]
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    scalars = events.Scalars("train/memexport/peak_bytes/cpu")
    logged = [entry["memexport/peak_bytes/cpu"] for entry in trainer.state.log_history]
    assert [scalar.value for scalar in scalars] == logged


def test_a_second_training_gets_a_file_of_its_own(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    trainer = trainer_with(callback, tmp_path, max_steps=1)
    trainer.train()
    trainer.train()
    assert {path.name for path in tmp_path.glob("*.memx")} == {"run.memx", "run-train2.memx"}


def test_after_an_exception_the_next_training_or_a_stop_completes_the_recording(tmp_path):
    callback = MemoryCallback([tmp_path / "run.memx"])
    trainer = trainer_with(callback, tmp_path)
    whole, trainer.train_dataset = trainer.train_dataset, _Ending()
    with pytest.raises(LookupError):
        trainer.train()
    trainer.train_dataset = whole
    trainer.train()
    callback.stop()
    for name in ("run.memx", "run-train2.memx"):
        with memexport.open(tmp_path / name) as recording:
            assert recording.summary().warnings == ()
    assert _get_current_dispatch_mode_stack() == []


class _Ending(Tokens):
    def __getitem__(self, index):
        raise LookupError("no more data")


SCRIPT = """\
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_transformers_callback import MemoryCallback, _Ending, trainer_with
folder = Path({folder!r})
trainer = trainer_with(MemoryCallback([folder / "run.memx"]), folder)
trainer.train_dataset = _Ending()
trainer.train()
"""


def test_a_recording_that_an_exception_ends_with_the_process_is_complete_and_says_so(tmp_path):
    script = SCRIPT.format(tests=os.path.dirname(__file__), folder=str(tmp_path))  # noqa: PTH120 - for a string
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "LookupError" in done.stderr
    with memexport.open(tmp_path / "run.memx") as recording:
        summary = recording.summary()
    assert summary.warnings == ()
    assert "exception: LookupError" in [marker.name for marker in summary.markers]


def test_only_the_steps_that_were_asked_for_are_recorded_and_the_trainers_steps_count(tmp_path):
    """Of two batches each, as the gradients of two are accumulated."""
    callback = MemoryCallback([tmp_path / "run.memx"], steps=(1, 3), record_stacks=True)
    trainer_with(callback, tmp_path, gradient_accumulation_steps=2).train()
    with memexport.open(tmp_path / "run.memx") as recording:
        rows = recording.to_pandas()
        stacks = recording.summary().devices["cpu"].stacks_at_peak
    operators = rows[(rows.kind == "operator") & rows.step.notna()]
    assert set(operators.step) == {1, 2}
    assert any("modeling_gpt2.py" in frame for row in stacks for frame in row.stack or ())


def test_the_last_events_before_an_error_of_memory_are_written_where_it_was_asked_for(tmp_path):
    callback = MemoryCallback(on_oom=tmp_path / "oom.memx")
    trainer = trainer_with(callback, tmp_path)
    trainer.compute_loss = lambda *_, **__: torch.empty(1 << 60)
    with pytest.raises(RuntimeError):
        trainer.train()
    callback.stop()
    with memexport.open(tmp_path / "oom.memx") as recording:
        assert recording.summary().ooms == 1


def test_what_is_wrong_with_the_options_is_said_at_once():
    with pytest.raises(UsageError, match="does not say which format"):
        MemoryCallback(["run.unknown"])


def test_a_plain_tracker_records_a_loop_of_accelerate(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(Tokens(), batch_size=8)
    )
    with memexport.Tracker(model, optimizer=optimizer, exporters=[tmp_path / "run.memx"]) as tracker:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                tracker.step()
    summary = tracker.summary()
    assert [marker.name for marker in summary.markers].count("step") == 2
    peak = summary.devices["cpu"]
    assert peak.categories_at_peak["optimizer_state"] > 0
    assert "transformer.h.0.mlp.act" in {row.module for row in summary.top_operators}
