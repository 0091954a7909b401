"""Encode speech, each layer two CUDA graphs. Cause: timers that wait for the GPU were left in."""

import time

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T = (32, 2, 2, 16) if loop.SMALL else (1024, 24, 16, 256)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, 16, -1).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Rest(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@torch.inference_mode()
def build():
    dev = loop.device()
    torch.manual_seed(0)
    sound = torch.randn(4, B, T, D, device=dev, dtype=torch.bfloat16)
    x = sound[0].clone()
    parts = [kind().to(dev, torch.bfloat16).eval() for _ in range(L) for kind in (Attention, Rest)]
    replays = []
    for part in parts:
        if loop.SMALL:
            replays.append(lambda part=part: x.copy_(part(x)))
            continue
        x.copy_(part(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.copy_(part(x))
        replays.append(graph.replay)
    totals = [0.0] * len(replays)

    @torch.inference_mode()
    def step(cause, i):
        x.copy_(sound[i % 4])
        for k, replay in enumerate(replays):
            if cause:
                loop.sync()
            began = time.perf_counter()
            replay()
            if cause:
                loop.sync()
                totals[k] += time.perf_counter() - began

    return step


if __name__ == "__main__":
    loop.main(build)
