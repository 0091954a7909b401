"""Train on clips of video by DDP, two ranks. Cause: rank 0 writes the norm of each gradient to a log."""

import io

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

C, B, S, T = (8, 1, 16, 4) if loop.SMALL else (64, 12, 112, 16)


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.s, self.t = (
            nn.Conv3d(a, b, (1, 3, 3), (1, stride, stride), (0, 1, 1)),
            nn.Conv3d(b, b, (3, 1, 1), 1, (1, 0, 0)),
        )
        self.n1, self.n2 = nn.BatchNorm3d(b), nn.BatchNorm3d(b)
        self.skip = nn.Conv3d(a, b, 1, (1, stride, stride))

    def forward(self, x):
        h = F.relu(self.n1(self.s(x)))
        return F.relu(self.n2(self.t(h)) + self.skip(x))


def build():
    me, _ = loop.ranks()
    dev = loop.device()
    torch.manual_seed(0)
    widths = [C, C, 2 * C, 2 * C, 4 * C, 4 * C, 8 * C, 8 * C]
    blocks = [Block(a, b, 1 + (a != b)) for a, b in zip([C, *widths], widths)]
    net = nn.Sequential(
        nn.Conv3d(3, C, (1, 7, 7), (1, 2, 2), (0, 3, 3)), *blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten()
    )
    net.append(nn.Linear(8 * C, 400))
    net = net.to(dev, memory_format=torch.channels_last_3d)
    ddp = DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), 1e-2, 0.9, foreach=True)
    clips = [
        torch.randn(B, 3, T, S, S, device=dev).to(memory_format=torch.channels_last_3d) for _ in range(3)
    ]
    kinds = torch.randint(0, 400, (B,), device=dev)
    log = io.StringIO()

    def step(cause, i):
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = F.cross_entropy(ddp(clips[i % 3]), kinds)
        loss.backward()
        if cause and me == 0:
            for name, p in net.named_parameters():
                hist = torch.histc(p.grad.float(), 40).cpu().tolist()
                log.write(f"{i} {name} {p.grad.norm().item():.3e} {p.norm().item():.3e} {hist}\n")
            log.seek(0)
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
