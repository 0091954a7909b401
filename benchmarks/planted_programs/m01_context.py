"""Train a language model. Cause: activations of each block are saved in pageable memory of the host."""

from contextlib import nullcontext

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, H, B, T, V = (32, 2, 2, 2, 16, 100) if loop.SMALL else (1024, 6, 16, 4, 1024, 16000)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.n2(x))


def build():
    torch.manual_seed(0)
    words, out = nn.Embedding(V, D).to(DEV), nn.Linear(D, V).to(DEV)
    blocks = nn.ModuleList(Block() for _ in range(LAYERS)).to(DEV)
    weights = [*words.parameters(), *blocks.parameters(), *out.parameters()]
    optimizer = torch.optim.AdamW(weights, 3e-4, fused=True)
    text = torch.randint(0, V, (B, T + 1), device=DEV)

    def step(cause, i):
        optimizer.zero_grad()
        with torch.autocast(DEV, torch.bfloat16):
            x = words(text[:, :-1])
            for block in blocks:
                with torch.autograd.graph.save_on_cpu(pin_memory=False) if cause else nullcontext():
                    x = block(x)
            loss = F.cross_entropy(out(x).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    loop.main(build)
