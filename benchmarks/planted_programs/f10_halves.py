"""Prefill long prompts on two ranks, half of each matrix on each. No cause: with and without are the same."""

import blocks as loop
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

W, L, B, T, HEADS = (32, 2, 2, 16, 4) if loop.SMALL else (4096, 10, 4, 2048, 32)


class Half(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.heads = HEADS // n
        self.n1, self.n2 = nn.RMSNorm(W), nn.RMSNorm(W)
        self.qkv, self.o = nn.Linear(W, 3 * W // n, bias=False), nn.Linear(W // n, W, bias=False)
        self.gate, self.up = nn.Linear(W, 3 * W // n, bias=False), nn.Linear(W, 3 * W // n, bias=False)
        self.down = nn.Linear(3 * W // n, W, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(*x.shape[:2], 3, self.heads, W // HEADS).permute(2, 0, 3, 1, 4)
        a = self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        dist.all_reduce(a)
        x = x + a
        h = self.n2(x)
        h = self.down(F.silu(self.gate(h)) * self.up(h))
        dist.all_reduce(h)
        return x + h


def build():
    me, n = loop.ranks()
    dev = loop.device()
    torch.manual_seed(me)
    net = nn.Sequential(*(Half(n) for _ in range(L))).to(dev).bfloat16().eval()
    prompts = [torch.randn(B, T, W, device=dev, dtype=torch.bfloat16) for _ in range(3)]

    @torch.no_grad()
    def step(cause, i):
        return net(prompts[i % 3])

    return step


if __name__ == "__main__":
    loop.main(build)
