"""Decode loop of a language model over audio codes. Cause: CUDA_LAUNCH_BLOCKING=1 was left set."""

import os
import sys

if len(sys.argv) > 1 and sys.argv[1] == "with":
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, H, B, T, V = (64, 2, 4, 2, 64, 128) if loop.SMALL else (4096, 8, 32, 64, 512, 8192)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x, k_cache, v_cache, pos, mask):
        q, k, v = self.qkv(self.n1(x)).view(B, 1, 3, H, D // H).permute(2, 0, 3, 1, 4)
        k_cache.index_copy_(2, pos, k)
        v_cache.index_copy_(2, pos, v)
        a = F.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(B, 1, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    dt = torch.bfloat16
    torch.manual_seed(0)
    with torch.device(dev):
        emb = nn.Embedding(V, D).to(dt)
        blocks = nn.ModuleList(Block() for _ in range(L)).to(dt)
        head = nn.Linear(D, V, bias=False).to(dt)
        caches = [
            (torch.zeros(B, H, T, D // H, dtype=dt), torch.zeros(B, H, T, D // H, dtype=dt)) for _ in range(L)
        ]
        token = torch.zeros(B, 1, dtype=torch.long)
        pos = torch.zeros(1, dtype=torch.long)
        every = torch.arange(T)
    state = {"token": token}

    @torch.no_grad()
    def step(cause, i):
        pos.add_(1).remainder_(T)
        mask = (every <= pos).view(1, 1, 1, T)
        x = emb(state["token"])
        for block, (k, v) in zip(blocks, caches):
            x = block(x, k, v, pos, mask)
        state["token"] = head(x).argmax(-1)

    return step


if __name__ == "__main__":
    loop.main(build)
