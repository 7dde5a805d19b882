"""Hugging Face: a callback that records what `Trainer.train` does with memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import nn

from memexport.errors import UsageError
from memexport.integrations._options import TrackerOptions
from memexport.integrations._recorder import Output, Recorder
from memexport.tracker import Tracker

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise UsageError("transformers is not installed", hint="pip install 'memexport[transformers]'") from error


class MemoryCallback(TrainerCallback):
    """Records each `train`, from its start to its end.

    ```python
    trainer = transformers.Trainer(model, callbacks=[MemoryCallback(exporters=["run.memx"])])
    ```

    A step is an optimizer step, as in `TrainerState.global_step`: with `gradient_accumulation_steps=4` it has
    four batches. What happens outside of the training loop, as evaluation, belongs to the step that comes
    after it; the MARKER "evaluation ends" stands behind each.

    A second `train` writes to "run-train2.memx", and so on. Of several ranks, each writes its own file, as a
    `Tracker` does. The Trainer does not tell its callbacks of an exception: after one, the recording goes on
    until `stop`, the next `train` or the end of the process, and is complete then.

    Args:
        exporters: as of `memexport.Tracker`.
        log_peak: also put "memexport/peak_bytes/DEVICE" into what the Trainer logs: the most that was
            allocated since it logged last. It is in `trainer.state.log_history`, and in what callbacks after
            this one get; the Trainer's reporting integrations (`report_to`) come before it, unless it is put
            first: `trainer.callback_handler.callbacks.insert(0, callback)`.
        options: `every`, `window`, `steps`, `max_bytes`, `on_oom`, `capture` and the others of
            `memexport.Tracker` (`TrackerOptions`). Steps count from 0 in each training.

    Attributes:
        tracker: of the `train` that runs or ran last, for its `summary` and `usage`; None before the first.

    Raises:
        UsageError: transformers is not installed, no format fits a path, or an option is out of its range.
        TypeError: there is no such option.
    """

    def __init__(
        self,
        exporters: Sequence[Output] = (),
        *,
        log_peak: bool = False,
        **options: Unpack[TrackerOptions],
    ) -> None:
        self._recorder = Recorder("train", exporters, options)
        self._log_peak = log_peak

    @property
    def tracker(self) -> Tracker | None:
        """Of the `train` that runs or ran last."""
        return self._recorder.tracker

    def stop(self) -> None:
        """Complete the recording after an exception. Without one that runs, it does nothing."""
        self._recorder.stop()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **_others: Any,
    ) -> None:
        """Begin to record."""
        modules = [model] if model is not None else []
        self._recorder.start(*modules, optimizers=[optimizer] if optimizer is not None else [])

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_others: Any,
    ) -> None:
        """End the step."""
        self._recorder.step()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_others: Any,
    ) -> None:
        """Add the peak to what is being logged."""
        if self._log_peak and logs is not None:
            peaks = self._recorder.take_peak()
            logs.update(peaks)
            state.log_history[-1].update(peaks)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_others: Any,
    ) -> None:
        """Say that evaluation is over."""
        self._recorder.mark("evaluation ends")

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_others: Any,
    ) -> None:
        """Complete the recording."""
        self._recorder.stop()
