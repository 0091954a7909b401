"""Denoise pictures by a U-Net that joins its halves. Without a cause."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F


def pair(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.SiLU())


def build():
    torch.manual_seed(0)
    widths = (96, 192, 384)
    down = nn.ModuleList(pair(a, b) for a, b in zip((8, *widths), widths, strict=False))
    up = nn.ModuleList(pair(b + a, a) for a, b in zip(widths, widths[1:], strict=False))
    last = nn.Conv2d(96, 8, 1)
    for part in (down, up, last):
        part.to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    pictures = torch.randn(32, 8, 192, 192, device="cuda", dtype=torch.bfloat16)
    pictures = pictures.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step(cause, i):
        x, levels = pictures, []
        for n, part in enumerate(down):
            x = part(F.max_pool2d(x, 2) if n else x)
            levels.append(x)
        for n in (1, 0):
            x = up[n](torch.cat([F.interpolate(x, scale_factor=2), levels[n]], 1))
        last(x).mean().item()

    return step


if __name__ == "__main__":
    loop.main(build)
