"""Segment volumes, training. Cause: volumes are copied on the stream that computes, beside nothing."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
B, C, S = (1, 8, 16) if loop.SMALL else (8, 32, 128)


def pair(a, b):
    return nn.Sequential(
        *(nn.Conv3d(a, b, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv3d(b, b, 3, padding=1), nn.ReLU(inplace=True)),
    )


class Segment(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(4, C, 4, 4)
        self.body = nn.Sequential(pair(C, 2 * C), nn.MaxPool3d(2), pair(2 * C, 4 * C))
        self.out = nn.Conv3d(4 * C, 4, 1)

    def forward(self, x):
        return self.out(self.body(self.first(x)))


def build():
    torch.manual_seed(0)
    model = Segment().to(DEV, memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    volumes = [torch.randn(B, 4, S, S, S).to(memory_format=torch.channels_last_3d) for _ in range(3)]
    labels = torch.randint(0, 4, (B, S // 8, S // 8, S // 8), device=DEV)
    copies, ahead = None, []
    if DEV == "cuda":
        volumes, copies = [each.pin_memory() for each in volumes], torch.cuda.Stream()

    def fetch(i):
        with torch.cuda.stream(copies):
            return volumes[i % 3].to(DEV, non_blocking=True)

    def step(cause, i):
        if cause or copies is None:
            volume = volumes[i % 3].to(DEV, non_blocking=True)
        else:
            volume = ahead.pop() if ahead else fetch(i)
            torch.cuda.current_stream().wait_stream(copies)
            volume.record_stream(torch.cuda.current_stream())
            ahead.append(fetch(i + 1))
        with torch.autocast(DEV, torch.bfloat16):
            loss = F.cross_entropy(model(volume), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
