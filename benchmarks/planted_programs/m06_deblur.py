"""Sharpen pictures by a convolutional network, training. Cause: tensors are NCHW, which cuDNN converts."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
C, BLOCKS, B, S = (8, 2, 1, 16) if loop.SMALL else (128, 8, 16, 128)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


def build():
    given = torch.randn(B, 3, S, S, device=DEV)
    wanted = torch.randn(B, 3, S, S, device=DEV)
    made = {}

    def made_for(cause):
        torch.manual_seed(0)
        body = [Block() for _ in range(BLOCKS)]
        model = nn.Sequential(nn.Conv2d(3, C, 3, padding=1), *body, nn.Conv2d(C, 3, 3, padding=1))
        layout = torch.contiguous_format if cause else torch.channels_last
        model = model.to(DEV, memory_format=layout)
        inputs = given.to(memory_format=layout), wanted.to(memory_format=layout)
        return model, torch.optim.Adam(model.parameters(), 1e-4, fused=True), inputs

    def step(cause, i):
        if cause not in made:
            made[cause] = made_for(cause)
        model, optimizer, (blurred, sharp) = made[cause]
        with torch.autocast(DEV, torch.bfloat16):
            loss = F.l1_loss(model(blurred), sharp)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
