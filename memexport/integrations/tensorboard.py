"""TensorBoard: an exporter that writes scalars of each step while a program trains."""

from __future__ import annotations

from memexport.exporters.tensorboard import TensorBoardExporter

__all__ = ["TensorBoardExporter"]
