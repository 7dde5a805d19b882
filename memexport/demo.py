"""The demo: a small transformer trained under the tracker."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memexport.tracker import Tracker

VOCABULARY = 512
WIDTH = 64
HEADS = 4
TOKENS = 48
SEQUENCES = 8


class Attention(nn.Module):
    """Causal multi-head self-attention, batch × tokens × width in and out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return result


class Block(nn.Module):
    """Attention and an MLP, each behind a norm and around a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then think."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class SmallTransformer(nn.Module):
    """A language model; its output layer shares the embedding, its last block is checkpointed."""

    def __init__(self, width: int = WIDTH, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for the token after each."""
        x = self.embedding(tokens)
        for block in self.blocks[:-1]:
            x = block(x)
        x = checkpoint(self.blocks[-1], x, use_reentrant=False)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Forward, backward and update on random tokens; the loss."""
    tokens = torch.randint(VOCABULARY, (SEQUENCES, TOKENS + 1))
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def run(directory: Path, *, overwrite: bool = False) -> list[Path]:
    """Train three steps on the CPU under the tracker; the files written: demo.memx and demo.pftrace.

    Raises:
        OutputError: a file is there already and may not be replaced, or cannot be written.
    """
    from memexport.exporters.archive import ArchiveExporter
    from memexport.exporters.destination import FileDestination
    from memexport.exporters.perfetto import PerfettoExporter

    paths = [directory / "demo.memx", directory / "demo.pftrace"]
    torch.set_num_threads(1)  # tensors this small are not worth sharing out
    archive, trace = (FileDestination(path, overwrite, atomic=False) for path in paths)
    torch.manual_seed(0)
    model = SmallTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Tracker(
        model, optimizer=optimizer, exporters=[ArchiveExporter(archive), PerfettoExporter(trace)]
    ) as tracker:
        for _ in range(3):
            training_step(model, optimizer)
            tracker.step()
    return paths
