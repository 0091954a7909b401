"""Serve batches of pictures. Cause: the end of a batch is polled for every 4 ms."""

import time

import blocks as loop
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    widths = (3, 64, 128, 256, 512)
    parts = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU())
        for a, b in zip(widths, widths[1:], strict=False)
    ]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()
    model = model.to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    pictures = (
        torch.randn(256, 3, 224, 224)
        .to(torch.bfloat16)
        .contiguous(memory_format=torch.channels_last)
        .pin_memory()
    )
    answer = torch.empty(256, dtype=torch.int64).pin_memory()
    done = torch.cuda.Event()

    @torch.inference_mode()
    def step(cause, i):
        x = pictures.to("cuda", non_blocking=True)
        answer.copy_(model(x).argmax(1), non_blocking=True)
        done.record()
        if cause:
            while not done.query():
                time.sleep(0.004)
        else:
            done.synchronize()
        return answer.tolist()

    return step


if __name__ == "__main__":
    loop.main(build)
