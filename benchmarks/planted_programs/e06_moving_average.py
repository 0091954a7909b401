"""Train a diffusion U-Net. Cause: the moving average of the weights is a loop over tensors."""

import copy

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, B, S = (8, 2, 16) if loop.SMALL else (128, 48, 64)


class Res(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.n1, self.c1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, padding=1)
        self.t = nn.Linear(4 * C, b)
        self.n2, self.c2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.relu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.c2(F.relu(self.n2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(C, 4 * C), nn.SiLU(), nn.Linear(4 * C, 4 * C))
        self.first = nn.Conv2d(3, C, 3, padding=1)
        w = (C, 2 * C, 2 * C, 2 * C)
        self.down = nn.ModuleList(
            nn.ModuleList(Res(a, b) if k == 0 else Res(b, b) for k in range(3)) for a, b in zip((C, *w), w)
        )
        self.up = nn.ModuleList(
            nn.ModuleList(Res(b + b, a) if k == 0 else Res(a, a) for k in range(3))
            for a, b in reversed(list(zip((C, *w), w)))
        )
        self.last = nn.Conv2d(C, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.time(t)
        h = self.first(x)
        kept = []
        for stage in self.down:
            for r in stage:
                h = r(h, t)
            kept.append(h)
            h = F.avg_pool2d(h, 2)
        for stage in self.up:
            h = torch.cat((F.interpolate(h, scale_factor=2.0), kept.pop()), 1)
            for r in stage:
                h = r(h, t)
        return self.last(h)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = UNet().to(dev, memory_format=torch.channels_last)
    ema = copy.deepcopy(net).requires_grad_(False)
    with torch.device(dev):
        images = [torch.randn(B, 3, S, S).to(memory_format=torch.channels_last) for _ in range(4)]
        t = torch.randn(B, C)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=dev == "cuda")
    ours = [p for p in net.state_dict().values() if p.is_floating_point()]
    theirs = [p for p in ema.state_dict().values() if p.is_floating_point()]

    def step(cause, i):
        x = images[i % 4]
        noise = torch.randn_like(x)
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = F.mse_loss(net(x + noise, t), noise)
        loss.backward()
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            if cause:
                for e, p in zip(theirs, ours):
                    e.mul_(0.999).add_(p, alpha=0.001)
            else:
                torch._foreach_lerp_(theirs, ours, 0.001)

    return step


if __name__ == "__main__":
    loop.main(build)
