"""How long it takes to estimate a training step of a model shaped like Llama-7B, and in how much memory.

    python tools/bench/fake.py [--device cuda] [--batch 1] [--tokens 2048] [--dtype bfloat16] [--layers 32]

Forward, backward and AdamW on simulated tensors, in this process, with `memexport.Tracker(fake=True)`. A real
one of these steps in bfloat16 takes some 70 GB.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import nn
from torch.nn import functional

import memexport

TARGETS = "under 60 s and 4 GB resident"
WIDTH, HIDDEN, HEADS, VOCABULARY = 4096, 11008, 32, 32000


class RMSNorm(nn.Module):
    """Llama's norm: computed in float32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotary position embedding of queries or keys."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attend."""
        batch, tokens, _ = x.shape
        query, key, value = (
            part(x).view(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(
            rotated(query, cos, sin), rotated(key, cos, sin), value, is_causal=True
        )
        result: torch.Tensor = self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return result


class Block(nn.Module):
    """Attention and a SwiGLU."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(dtype), RMSNorm(dtype)
        self.attention = Attention(dtype)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False, dtype=dtype) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attend, then think."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        normed = self.mlp_norm(x)
        result: torch.Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return result


class Llama(nn.Module):
    """Shaped like Llama-7B: 6.74 thousand million parameters with 32 layers."""

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList(Block(dtype) for _ in range(layers))
        self.norm = RMSNorm(dtype)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for the token after each."""
        x = self.embedding(tokens)
        width = WIDTH // HEADS
        frequencies = 10000.0 ** (-torch.arange(0, width, 2, device=tokens.device).float() / width)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def main() -> None:
    """Estimate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    started = time.perf_counter()
    dtype = getattr(torch, options.dtype)
    with memexport.Tracker(fake=True, device=options.device, budget="80GiB") as tracker:
        model = Llama(options.layers, dtype)
        optimizer = torch.optim.AdamW(model.parameters())
        made = time.perf_counter()
        tokens = torch.randint(VOCABULARY, (options.batch, options.tokens + 1))
        logits = model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.step()
    ended = time.perf_counter()
    print(tracker.summary())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{parameters:,} parameters: model made in {made - started:.1f} s, step in {ended - made:.1f} s,")
    print(f"at most {resident:,.0f} MiB resident (target: {TARGETS})")


if __name__ == "__main__":
    main()
