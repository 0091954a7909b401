"""Self-supervised training whose teacher is a running average, updated weight by weight in a loop.

Reported: https://github.com/ultralytics/ultralytics/pull/25315 (594 tensors, two operations each),
https://github.com/ecmwf/WeatherGenerator/pull/2551.
"""

import copy

import steps
import torch
from torch import nn

DEV = steps.device()
WIDTH, LAYERS, ROWS = (16, 4, 2) if steps.SMALL else (256, 96, 1024)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.one, self.two = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x):
        return x + self.two(nn.functional.gelu(self.one(self.norm(x))))


def build(fixed):
    torch.manual_seed(0)
    student = nn.Sequential(*(Block() for _ in range(LAYERS))).to(DEV)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4, fused=DEV == "cuda")
    data = torch.randn(ROWS, WIDTH, device=DEV)
    pairs = list(zip(teacher.parameters(), student.parameters()))

    @torch.no_grad()
    def average():
        if fixed:
            torch._foreach_lerp_([a for a, _ in pairs], [b.data for _, b in pairs], 0.01)
        else:
            for old, new in pairs:
                old.mul_(0.99)
                old.add_(new.data * 0.01)

    def step(i):
        loss = nn.functional.mse_loss(student(data + 0.1 * torch.randn_like(data)), teacher(data))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
