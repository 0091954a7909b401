"""Train a small transformer with anomaly detection left on (each backward node checks its gradient for NaN).

Reported: https://github.com/Lightning-AI/pytorch-lightning/issues/12344 (three times as slow),
https://github.com/yenchenlin/nerf-pytorch/issues/42.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
WIDTH, HEADS, LAYERS, ROWS, LENGTH = (32, 2, 2, 2, 8) if steps.SMALL else (768, 12, 12, 8, 512)


def build(fixed):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Linear(64, WIDTH),
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        nn.Linear(WIDTH, 64),
    ).to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=DEV == "cuda")
    data = torch.randn(ROWS, LENGTH, 64, device=DEV)
    torch.autograd.set_detect_anomaly(not fixed)

    def step(i):
        with torch.autocast(DEV, torch.bfloat16):
            loss = nn.functional.mse_loss(model(data), data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
