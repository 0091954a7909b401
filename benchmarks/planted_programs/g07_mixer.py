"""Train a network of mixing layers on pictures. Cause: the optimizer updates one parameter after another."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, N, L, B = (16, 16, 1, 2) if loop.SMALL else (512, 196, 24, 48)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.tokens = nn.Sequential(nn.Linear(N, D // 2), nn.GELU(), nn.Linear(D // 2, N))
        self.channels = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = nn.Sequential(*[Mixer() for _ in range(L)], nn.LayerNorm(D)).to(dev)
    head = nn.Linear(D, 1000).to(dev)
    params = [*net.parameters(), *head.parameters()]
    one_by_one = torch.optim.AdamW(params, 1e-4, foreach=False)
    at_once = torch.optim.AdamW(params, 1e-4, foreach=True)
    x = torch.randn(3, B, N, D, device=dev)
    kinds = torch.randint(0, 1000, (B,), device=dev)

    def step(cause, i):
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = F.cross_entropy(head(net(x[i % 3]).mean(1)), kinds)
        loss.backward()
        (one_by_one if cause else at_once).step()
        net.zero_grad()
        head.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
