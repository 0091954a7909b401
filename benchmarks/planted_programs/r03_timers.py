"""Infer with a convolutional network whose stages are timed by synchronizing around each of them.

Reported: https://github.com/HuguesTHOMAS/KPConv-PyTorch/issues/22 (25 % slower).
"""

import time

import steps
import torch
from torch import nn

DEV = steps.device()
CHANNELS, STAGES, SIZE, ROWS = (8, 4, 16, 2) if steps.SMALL else (96, 48, 56, 24)


def build(fixed):
    torch.manual_seed(0)
    stages = [
        nn.Sequential(
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 1),
        )
        .to(DEV)
        .eval()
        for _ in range(STAGES)
    ]
    data = torch.randn(ROWS, CHANNELS, SIZE, SIZE, device=DEV)
    spent = [0.0] * STAGES

    @torch.inference_mode()
    def step(i):
        x = data
        for number, stage in enumerate(stages):
            if not fixed:
                steps.wait()
            began = time.perf_counter()
            x = x + stage(x)
            if not fixed:
                steps.wait()
            spent[number] += time.perf_counter() - began

    return step


if __name__ == "__main__":
    steps.main(build, 400)
