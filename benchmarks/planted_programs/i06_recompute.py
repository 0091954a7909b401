"""Train a language model. Cause: layers are computed again in the backward pass, for no need."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

D, L, B, T = (32, 2, 2, 16) if loop.SMALL else (2048, 8, 8, 1024)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, 16, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    words = nn.Embedding(32000, D).to(dev, torch.bfloat16)
    layers = nn.ModuleList(Layer() for _ in range(L)).to(dev, torch.bfloat16)
    head = nn.Linear(D, 32000, bias=False).to(dev, torch.bfloat16)
    parameters = [*words.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-4, fused=True)
    text = torch.randint(32000, (4, B, T + 1), device=dev)

    def step(cause, i):
        each = text[i % 4]
        x = words(each[:, :-1])
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if cause else layer(x)
        F.cross_entropy(head(x).flatten(0, 1), each[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    loop.main(build)
