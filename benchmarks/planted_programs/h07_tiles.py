"""Restore pictures of many sizes. Cause: the cache of memory is emptied after each picture."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, L = (8, 2) if loop.SMALL else (96, 12)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(C, 2 * C, 3, 1, 1), nn.Conv2d(2 * C, C, 3, 1, 1)

    def forward(self, x):
        return x + self.c2(F.relu(self.c1(x), True))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, C, 3, 1, 1), *[Block() for _ in range(L)], nn.Conv2d(C, 3, 3, 1, 1))
    net = net.to(dev, torch.bfloat16, memory_format=torch.channels_last).eval()
    sizes = [32, 48] if loop.SMALL else [256, 320, 384, 288]
    pictures = [torch.randn(4, 3, s, s, device=dev, dtype=torch.bfloat16) for s in sizes]
    pictures = [p.to(memory_format=torch.channels_last) for p in pictures]

    @torch.inference_mode()
    def step(cause, i):
        for picture in pictures:
            out = net(picture)
            del out
            if cause and dev == "cuda":
                torch.cuda.empty_cache()

    return step


if __name__ == "__main__":
    loop.main(build)
