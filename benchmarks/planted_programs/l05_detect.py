"""Detect objects in pictures. Cause: the boxes are decoded with NumPy and Python on the host."""

import blocks as loop
import numpy as np
import torch
import torchvision
from torch import nn

DEV = loop.device()
B, S, K = (1, 64, 10) if loop.SMALL else (16, 512, 100)


def build():
    torch.manual_seed(0)
    body = torchvision.models.resnet18() if loop.SMALL else torchvision.models.resnet50()
    wide = 512 if loop.SMALL else 2048
    model = (
        nn.Sequential(
            *list(body.children())[:-2],
            nn.ConvTranspose2d(wide, 256, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(256, 128, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 128, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(128, 20 + 4, 1),
        )
        .to(DEV, torch.bfloat16)
        .to(memory_format=torch.channels_last)
        .eval()
    )
    images = [
        torch.randn(B, 3, S, S, device=DEV, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        for _ in range(4)
    ]
    count, results = [0], []

    def decode_on_host(heat, boxes):
        score, label = heat.max(1)
        score, label = score.float().flatten(1).cpu().numpy(), label.flatten(1).cpu().numpy()
        boxes = boxes.float().cpu().numpy()
        w = boxes.shape[-1]
        found = []
        for i in range(len(score)):
            best = np.argpartition(-score[i], K)[:K]
            for j in best[np.argsort(-score[i][best])]:
                y, x = divmod(int(j), w)
                left, top, right, bottom = boxes[i, :, y, x]
                found.append(
                    (i, int(label[i, j]), float(score[i, j]), x - left, y - top, x + right, y + bottom)
                )
        return found

    def decode_on_gpu(heat, boxes):
        score, label = heat.max(1)
        top, where = score.flatten(1).float().topk(K)
        w = boxes.shape[-1]
        label = label.flatten(1).gather(1, where)
        side = boxes.flatten(2).gather(2, where[:, None].expand(-1, 4, -1)).float()
        x, y = (where % w).float(), (where // w).float()
        return torch.stack(
            [label.float(), top, x - side[:, 0], y - side[:, 1], x + side[:, 2], y + side[:, 3]], 2
        ).cpu()

    @torch.no_grad()
    def step(cause, i):
        out = model(images[count[0] % 4])
        count[0] += 1
        heat, boxes = out[:, :20].sigmoid(), out[:, 20:]
        results.append(decode_on_host(heat, boxes) if cause else decode_on_gpu(heat, boxes))
        if len(results) > 8:
            results.pop(0)
        return results[-1]

    return step


if __name__ == "__main__":
    loop.main(build)
