"""Gated linear recurrences, Triton. Cause: each head of each sequence is a launch of its own."""

import blocks as loop
import torch
import triton
import triton.language as tl
from torch import nn

D, HEADS, LAYERS, BATCH, TOKENS = 1024, 16, 4, 8, 128


@triton.jit
def scan(x, gate, out, first, T: tl.constexpr, STRIDE: tl.constexpr, W: tl.constexpr):
    program = first + tl.program_id(0)
    at = (program // 16) * T * STRIDE + (program % 16) * W + tl.arange(0, W)
    state = tl.zeros((W,), tl.float32)
    for t in range(T):
        g = tl.load(gate + at + t * STRIDE).to(tl.float32)
        state = g * state + (1 - g) * tl.load(x + at + t * STRIDE).to(tl.float32)
        tl.store(out + at + t * STRIDE, state)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, cause):
        values, gate = (t.contiguous() for t in self.into(self.norm(x)).chunk(2, -1))
        gate = gate.sigmoid()
        mixed = torch.empty_like(values)
        if cause:
            for first in range(BATCH * HEADS):
                scan[(1,)](values, gate, mixed, first, TOKENS, D, D // HEADS, num_warps=1)
        else:
            scan[(BATCH * HEADS,)](values, gate, mixed, 0, TOKENS, D, D // HEADS, num_warps=1)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(x)))


def build():
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to("cuda", torch.bfloat16)
    x = torch.randn(BATCH, TOKENS, D, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(cause, i):
        y = x
        for layer in layers:
            y = layer(y, cause)
        y.float().mean().item()

    return step


if __name__ == "__main__":
    loop.main(build)
