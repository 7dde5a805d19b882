"""What lives already when recording begins, or goes on after a pause: found, and told what it is for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from memexport.model import Category
from memexport.tracker.alive import look_around
from memexport.tracker.capture import Capture


class Registration:
    """Logs what is not followed yet.

    Args:
        capture: follows it from then on.
        fake: tensors are simulated.
    """

    def __init__(self, capture: Capture, *, fake: bool) -> None:
        self._capture = capture
        self._fake = fake

    def first(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        others: Iterable[torch.Tensor],
    ) -> None:
        """These, in this order; what `others` are for is not known, unless it was said of one before."""
        self._models(models)
        for optimizer in optimizers:
            self._capture.claims.optimizer(optimizer)
        self._capture.claims.tensors(others, Category.UNATTRIBUTED, None)

    def again(self) -> None:
        """Whatever Python knows of by now."""
        alive = look_around(fake=self._fake)
        self.first(self._capture.running.tree.root_modules(), alive.optimizers, alive.tensors)

    def _models(self, roots: Iterable[nn.Module]) -> None:
        tree, claims = self._capture.running.tree, self._capture.claims
        for root in roots:
            claims.model(root, tree.give(root))
            for parameter in root.parameters():
                if parameter.grad is not None:
                    claims.tensors([parameter.grad], Category.GRADIENT, tree.owner_of_parameter(parameter))
