"""Train a detector of objects with a focal loss.

Cause: the loss makes its constants on the host for each picture.

``torch.ones(shape).cuda()`` and ``torch.zeros(shape).cuda()`` fill memory of the host and copy it from
pageable memory, three times a picture. Mended by ``torch.ones_like`` and so on, on the GPU. Reported:
https://github.com/toandaominh1997/EfficientDet.Pytorch/issues/109 (four times faster training),
https://github.com/signatrix/efficientdet/issues/30.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
BATCH, SIDE, WIDTH, CLASSES, BOXES = (2, 64, 8, 4, 3) if steps.SMALL else (16, 512, 64, 20, 12)


def block(width_in, width_out, stride):
    conv = nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width_out), nn.ReLU(True))


class Detector(nn.Module):
    """A trunk with three levels (strides 8, 16 and 32), nine anchors at each place."""

    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Sequential(block(3, w, 2), block(w, w, 2), block(w, 2 * w, 2), block(2 * w, 2 * w, 1))
        self.down = nn.ModuleList([block(2 * w, 2 * w, 2), block(2 * w, 2 * w, 2)])
        self.tower = nn.Sequential(*[block(2 * w, 2 * w, 1) for _ in range(4)])
        self.classes, self.shifts = nn.Conv2d(2 * w, 9 * CLASSES, 1), nn.Conv2d(2 * w, 36, 1)

    def forward(self, pictures):
        levels = [self.stem(pictures)]
        for down in self.down:
            levels.append(down(levels[-1]))
        towers = [self.tower(level) for level in levels]
        heads = ([head(t).permute(0, 2, 3, 1) for t in towers] for head in (self.classes, self.shifts))
        scores, shifts = ([each.flatten(1) for each in head] for head in heads)
        return torch.cat(scores, 1).view(BATCH, -1, CLASSES), torch.cat(shifts, 1).view(BATCH, -1, 4)


def anchors_of(count):
    centres = torch.rand(count, 2) * SIDE
    sizes = torch.rand(count, 2) * 64 + 16
    return torch.cat([centres - sizes / 2, centres + sizes / 2], 1).to(DEV)


def overlap(anchors, boxes):
    low = torch.maximum(anchors[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(anchors[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(each[:, 2:] - each[:, :2]).prod(-1) for each in (anchors, boxes)]
    return shared / (areas[0][:, None] + areas[1][None] - shared)


def focal_loss(scores, shifts, anchors, boxes, names, fixed, alpha=0.25):
    best, which = overlap(anchors, boxes).max(1)
    positive = best > 0.4
    if fixed:
        targets, factor, zeros = -torch.ones_like(scores), torch.ones_like(scores), torch.zeros_like(scores)
    else:
        targets = (torch.ones(scores.shape) * -1).to(DEV)
        factor = torch.ones(scores.shape).to(DEV)
        zeros = torch.zeros(scores.shape).to(DEV)
    targets = torch.where((best < 0.3)[:, None], zeros, targets)
    wanted = nn.functional.one_hot(names[which], CLASSES).float()
    targets = torch.where(positive[:, None], wanted, targets)
    p = scores.sigmoid().clamp(1e-4, 1 - 1e-4)
    factor = torch.where(targets == 1, factor * alpha, factor * (1 - alpha))
    weight = factor * torch.where(targets == 1, 1 - p, p) ** 2
    entropy = -(targets * p.log() + (1 - targets) * (1 - p).log())
    classes = torch.where(targets != -1, weight * entropy, zeros).sum() / positive.sum().clamp(min=1)
    offsets = (shifts - (boxes[which] - anchors) / 32).abs().mean(1) * positive
    return classes + offsets.sum() / positive.sum().clamp(min=1)


def build(fixed):
    torch.manual_seed(0)
    model = Detector().to(DEV, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9, fused=DEV == "cuda")
    pictures = torch.rand(2, BATCH, 3, SIDE, SIDE, device=DEV)
    boxes = torch.stack([anchors_of(BOXES) for _ in range(BATCH)])
    names = torch.randint(0, CLASSES, (BATCH, BOXES), device=DEV)
    anchors = anchors_of(9 * sum((SIDE // stride) ** 2 for stride in (8, 16, 32)))

    def step(i):
        with torch.autocast(DEV, torch.bfloat16):
            scores, shifts = model(pictures[i % 2].contiguous(memory_format=torch.channels_last))
        each = zip(scores.float(), shifts.float(), boxes, names, strict=True)
        loss = torch.stack([focal_loss(s, d, anchors, b, n, fixed) for s, d, b, n in each]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    steps.main(build, 100)
