"""Train a convolutional network. Cause: another program uses the GPU.

`beside FILE` is that program: it works while FILE exists.
The training takes the file from the variable BESIDE, and makes and removes it.
"""

import os
import sys
import time
from pathlib import Path

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, B, N = (16, 2, 16) if loop.SMALL else (256, 64, 56)
BESIDE = Path(os.environ.get("BESIDE", "/tmp/beside"))


def beside(file):
    a = torch.randn(4096, 4096, device=loop.device(), dtype=torch.bfloat16)
    until = time.time() + 300
    while time.time() < until:
        if file.exists():
            for _ in range(4):
                a @ a
            loop.sync()
        time.sleep(0.002)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, C, 7, 4, 3)]
    for _ in range(10):
        parts += [nn.Conv2d(C, C, 3, padding=1, bias=False), nn.BatchNorm2d(C), nn.ReLU()]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 1000))
    model = model.to(dev, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    pictures = torch.randn(B, 3, 4 * N, 4 * N, device=dev).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (B,), device=dev)
    on = [None]

    def step(cause, i):
        if cause is not on[0]:
            loop.sync()
            BESIDE.touch() if cause else BESIDE.unlink(missing_ok=True)
            on[0] = cause
        with torch.autocast(dev, torch.bfloat16):
            loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    if sys.argv[1] == "beside":
        beside(Path(sys.argv[2]))
    else:
        loop.main(build)
        BESIDE.unlink(missing_ok=True)
