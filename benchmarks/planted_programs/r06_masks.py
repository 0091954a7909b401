"""Masked-model pre-training whose masks are drawn on the CPU, one permutation for each picture, in the step.

Reported: https://github.com/lightly-ai/lightly/issues/323.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
WIDTH, HEADS, LAYERS, ROWS, PLACES = (32, 2, 2, 4, 16) if steps.SMALL else (512, 8, 8, 256, 196)


def build(fixed):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=DEV == "cuda")
    patches = torch.randn(ROWS, PLACES, WIDTH, device=DEV)
    seen = PLACES // 4

    def draw():
        if fixed:
            return torch.rand(ROWS, PLACES, device=DEV).argsort(1)[:, :seen]
        return torch.stack([torch.randperm(PLACES)[:seen] for _ in range(ROWS)]).to(DEV)

    def step(i):
        chosen = draw()[..., None].expand(-1, -1, WIDTH)
        kept = patches.gather(1, chosen)
        with torch.autocast(DEV, torch.bfloat16):
            loss = nn.functional.mse_loss(model(kept).float(), kept)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
