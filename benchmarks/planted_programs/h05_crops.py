"""Train a residual network. Cause: pictures are cropped and turned on the host, one by one."""

import blocks as loop
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

C, B, S = (8, 4, 32) if loop.SMALL else (64, 256, 128)


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.BatchNorm2d(b), nn.BatchNorm2d(b)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else nn.Identity()

    def forward(self, x):
        h = F.relu(self.n1(self.c1(x)), True)
        return F.relu(self.skip(x) + self.n2(self.c2(h)), True)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    widths = [C, C, 2 * C, 2 * C, 4 * C, 4 * C, 8 * C, 8 * C]
    layers = [Block(a, b, 1 + (a != b)) for a, b in zip([C, *widths], widths)]
    net = nn.Sequential(nn.Conv2d(3, C, 3, 2, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.append(nn.Linear(8 * C, 100))
    net = net.to(dev, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), 1e-2, 0.9, foreach=True)
    stored = rng.integers(0, 255, (B, S + 16, S + 16, 3), dtype=np.uint8)
    there = torch.from_numpy(stored).to(dev)
    kinds = torch.randint(0, 100, (B,), device=dev)

    def cropped():
        out = np.empty((B, S, S, 3), np.float32)
        for k in range(B):
            y, x = rng.integers(0, 16, 2)
            picture = stored[k, y : y + S, x : x + S]
            picture = picture[:, ::-1] if rng.random() < 0.5 else picture
            out[k] = picture.astype(np.float32) / 255 - 0.5
        return torch.from_numpy(out).to(dev)

    def cropped_there():
        y, x = rng.integers(0, 16, 2)
        return there[:, y : y + S, x : x + S].float() / 255 - 0.5

    def step(cause, i):
        pictures = (cropped() if cause else cropped_there()).permute(0, 3, 1, 2)
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(pictures), kinds)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
