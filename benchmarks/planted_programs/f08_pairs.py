"""Train two towers on pairs, two ranks. Cause: gradients are summed one by one after the backward pass."""

import blocks as loop
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from f05_encoder import Layer, W
from torch.nn.parallel import DistributedDataParallel

L, B, T = (2, 2, 16) if loop.SMALL else (8, 96, 197)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Sequential(*(Layer() for _ in range(L)), nn.LayerNorm(W)) for _ in range(2))

    def forward(self, a, b):
        a, b = (F.normalize(net(x).mean(1).float(), dim=-1) for net, x in ((self.a, a), (self.b, b)))
        return F.cross_entropy(a @ b.T * 20, torch.arange(len(a), device=a.device))


def build():
    _, n = loop.ranks()
    dev = loop.device()
    torch.manual_seed(0)
    net = Towers().to(dev)
    ddp = DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=dev == "cuda")
    pairs = torch.randn(2, B, T, W, device=dev)

    def step(cause, i):
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = (net if cause else ddp)(*pairs)
        loss.backward()
        if cause:
            for p in net.parameters():
                dist.all_reduce(p.grad)
                p.grad /= n
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
