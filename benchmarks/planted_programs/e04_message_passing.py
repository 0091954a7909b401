"""Train a message passing network. Cause: torch.use_deterministic_algorithms(True)."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

N, E, D, L = (200, 2000, 16, 2) if loop.SMALL else (200_000, 1_500_000, 128, 3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.msg, self.upd = nn.Linear(D, D), nn.Linear(2 * D, D)

    def forward(self, h, src, dst):
        m = F.relu(self.msg(h)).index_select(0, src)
        agg = torch.zeros_like(h).index_add(0, dst, m)
        return h + F.relu(self.upd(torch.cat((h, agg), 1)))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(dev):
        net = nn.ModuleList(Layer() for _ in range(L))
        head = nn.Linear(D, 16)
        x = torch.randn(N, D)
        src, dst = torch.randint(0, N, (2, E))
        y = torch.randint(0, 16, (N,))
    opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], 1e-3, fused=dev == "cuda")

    def step(cause, i):
        torch.use_deterministic_algorithms(cause)
        h = x
        for layer in net:
            h = layer(h, src, dst)
        loss = F.cross_entropy(head(h), y)
        loss.backward()
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
