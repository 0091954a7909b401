"""Train a language model. Cause: norms and rotations are written out in single precision."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T, H = (32, 2, 2, 16, 2) if loop.SMALL else (1536, 12, 8, 1024, 12)
written_out = [False]


class Norm(nn.RMSNorm):
    def forward(self, x):
        if not written_out[0]:
            return super().forward(x)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * self.weight.float()).to(x.dtype)


def rotated(x, table):
    if not written_out[0]:
        return turned(x, table)
    y = x.float()
    a, b = y.chunk(2, -1)
    return (y * table[0] + torch.cat((-b, a), -1) * table[1]).to(x.dtype)


@torch.compile
def turned(x, table):
    y = x.float()
    a, b = y.chunk(2, -1)
    return (y * table[0] + torch.cat((-b, a), -1) * table[1]).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = Norm(D), Norm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x, table):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, H, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, table), rotated(k, table)
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
    angles = torch.outer(
        torch.arange(T, device=dev), 1e-4 ** torch.linspace(0, 1, D // H // 2, device=dev)
    ).repeat(1, 2)
    table = torch.stack((angles.cos(), angles.sin()))

    def step(cause, i):
        written_out[0] = cause
        each = text[i % 4]
        x = words(each[:, :-1])
        for layer in layers:
            x = layer(x, table)
        F.cross_entropy(head(x).flatten(0, 1), each[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    loop.main(build)
