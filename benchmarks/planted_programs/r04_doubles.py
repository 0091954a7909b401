"""Fit a neural field whose inputs came from NumPy, so that all of it is float64.

Reported: https://github.com/gazprom-neft/seismiqb/pull/19 (NumPy's generators made a pipeline double).
"""

import numpy as np
import steps
import torch
from torch import nn

DEV = steps.device()
WIDTH, LAYERS, POINTS = (16, 3, 64) if steps.SMALL else (1024, 8, 32768)


def build(fixed):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    points = np.random.default_rng(0).uniform(-1, 1, (POINTS, 4))
    if fixed:
        points = points.astype(np.float32)
    data = torch.from_numpy(points).to(DEV)
    layers = [nn.Linear(4, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.Linear(WIDTH, 1)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.SiLU())][:-1]).to(DEV, data.dtype)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=DEV == "cuda")
    target = torch.sin(data.sum(1, keepdim=True))

    def step(i):
        loss = nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
