"""Segment pictures by a convolutional network. Cause: its blocks are computed again in the backward pass."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

C, BLOCKS, BATCH, SIZE = (16, 2, 2, 32) if loop.SMALL else (192, 12, 24, 96)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep, self.norm = nn.Conv2d(C, C, 3, padding=1), nn.GroupNorm(8, C)
        self.wide, self.narrow = nn.Conv2d(C, 4 * C, 1), nn.Conv2d(4 * C, C, 1)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(self.deep(x)))))


def build():
    device = loop.device()
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
    model = nn.ModuleDict(
        {"first": nn.Conv2d(4, C, 3, padding=1), "blocks": blocks, "last": nn.Conv2d(C, 8, 1)}
    )
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    pictures = torch.randn(BATCH, 4, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(8, (BATCH, SIZE, SIZE), device=device)

    def step(cause, i):
        with torch.autocast(device, torch.bfloat16):
            x = model["first"](pictures)
            for block in model["blocks"]:
                x = checkpoint(block, x, use_reentrant=False) if cause else block(x)
            loss = F.cross_entropy(model["last"](x).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
