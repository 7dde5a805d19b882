"""Lightning: a callback that records what `Trainer.fit` does with memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch

from memexport.errors import UsageError
from memexport.integrations._options import TrackerOptions
from memexport.integrations._recorder import Output, Recorder
from memexport.tracker import Tracker

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise UsageError(
                "Lightning is not installed", hint="pip install 'memexport[lightning]'"
            ) from error


class MemoryCallback(Callback):
    """Records each `fit`, from its start to its end or the exception that ends it.

    ```python
    trainer = lightning.Trainer(callbacks=[MemoryCallback(exporters=["run.memx"])])
    ```

    A step is an optimizer step, as in `Trainer.global_step`: with `accumulate_grad_batches=4` it has four
    batches, and it ends with the last one. What happens outside of the training loop belongs to the step that
    comes after it; the MARKERs "validation" and "validation ends" stand around validation. Modules have the
    names that they have in the LightningModule.

    A second `fit` writes to "run-fit2.memx", and so on. Of several ranks, each writes its own file, as a
    `Tracker` does.

    Args:
        exporters: as of `memexport.Tracker`.
        log_peak: also log "memexport/peak_bytes/DEVICE" to the Trainer's loggers, every `log_every_n_steps`:
            the most that was allocated since it was logged last. Of several ranks, the first one's.
        options: `every`, `window`, `steps`, `max_bytes`, `on_oom`, `capture` and the others of
            `memexport.Tracker` (`TrackerOptions`). Steps count from 0 in each fit.

    Attributes:
        tracker: of the `fit` that runs or ran last, for its `summary` and `usage`; None before the first.

    Raises:
        UsageError: Lightning is not installed, no format fits a path, or an option is out of its range.
        TypeError: there is no such option.
    """

    def __init__(
        self,
        exporters: Sequence[Output] = (),
        *,
        log_peak: bool = False,
        **options: Unpack[TrackerOptions],
    ) -> None:
        super().__init__()
        self._recorder = Recorder("fit", exporters, options)
        self._log_peak = log_peak
        self._steps = 0

    @property
    def tracker(self) -> Tracker | None:
        """Of the `fit` that runs or ran last."""
        return self._recorder.tracker

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to record."""
        self._steps = trainer.global_step
        self._recorder.start(pl_module, optimizers=trainer.optimizers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See where a checkpoint goes on."""
        self._steps = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: torch.Tensor | Mapping[str, Any] | None,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End the step, if an optimizer has made one."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        self._recorder.step()
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a part of the Trainer
        if self._log_peak and self._steps % every == 0:
            peaks = self._recorder.take_peak()
            for logger in trainer.loggers:
                # Lightning numbers what it logs of a step from 0.
                logger.log_metrics(peaks, step=self._steps - 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that validation begins."""
        self._recorder.mark("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that it is over."""
        self._recorder.mark("validation ends")

    def on_exception(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        exception: BaseException,
    ) -> None:
        """Complete the recording, and say in it what ended it."""
        self._recorder.stop(exception)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Complete the recording."""
        self._recorder.stop()
