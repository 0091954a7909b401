"""Segment pictures and update a confusion matrix of valid pixels, class by class, in each step.

Reported: https://github.com/pytorch/ignite/issues/684, https://github.com/Lightning-AI/torchmetrics/pull/1302.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
CLASSES, SIZE, ROWS, WIDTH = (5, 16, 2, 8) if steps.SMALL else (40, 128, 8, 64)


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        *(m for _ in range(10) for m in (nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1))),
        nn.Conv2d(WIDTH, CLASSES, 1),
    ).to(DEV)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, foreach=True)
    pictures = torch.randn(ROWS, 3, SIZE, SIZE, device=DEV)
    labels = torch.randint(0, CLASSES + 1, (ROWS, SIZE, SIZE), device=DEV)
    matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=DEV)

    def count_each(guess):
        for true in range(CLASSES):
            of_class = guess[labels == true]
            matrix[true] += torch.bincount(of_class, minlength=CLASSES)[:CLASSES]

    def count_at_once(guess):
        cell = torch.where(labels < CLASSES, labels * CLASSES + guess, CLASSES * CLASSES).flatten()
        sums = torch.zeros(CLASSES * CLASSES + 1, dtype=torch.long, device=DEV)
        sums.scatter_add_(0, cell, torch.ones_like(cell))
        matrix.add_(sums[:-1].view(CLASSES, CLASSES))

    def step(i):
        with torch.autocast(DEV, torch.bfloat16):
            scores = model(pictures)
        loss = nn.functional.cross_entropy(scores.float(), labels.clamp(max=CLASSES - 1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            (count_at_once if fixed else count_each)(scores.argmax(1))

    return step


if __name__ == "__main__":
    steps.main(build, 200)
