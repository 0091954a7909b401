"""Train a one-stage detector: a convolutional trunk and losses over anchors that have an object."""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
dev = torch.device(args.device)
on_gpu = dev.type == "cuda"
SIZE, WIDTH, BATCH, SCALES = (256, 128, 16, 5) if on_gpu else (32, 8, 2, 5)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2, 1), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(WIDTH, WIDTH, 3, 2 if at else 1, 1),
                nn.ReLU(),
                nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
                nn.ReLU(),
            )
            for at in range(SCALES)
        )
        self.heads = nn.ModuleList(nn.Conv2d(WIDTH, 9 * 5, 3, 1, 1) for _ in range(SCALES))

    def forward(self, x):
        x, outs = self.stem(x), []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            outs.append(head(x).unflatten(1, (9, 5)).permute(0, 1, 3, 4, 2))
        return outs


def scale_loss(out, label, box):
    """Objectness of all anchors, and the boxes of those that have an object."""
    cls = F.binary_cross_entropy_with_logits(out[..., 0], label)
    pos = label > 0.5
    if args.variant == "planted":
        reg = F.smooth_l1_loss(out[..., 1:][pos], box[pos], reduction="sum") / (4 * pos.sum().clamp(min=1))
    else:
        weight = pos[..., None].float()
        each = F.smooth_l1_loss(out[..., 1:], box, reduction="none")
        reg = (each * weight).sum() / (4 * weight.sum().clamp(min=1))
    return cls + reg


with dev:
    model = Detector().to(memory_format=torch.channels_last)
    images = torch.randn(BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    shapes = [tuple(o.shape) for o in model(images)]
    labels = [(torch.rand(s[:-1]) < 0.05).float() for s in shapes]
    boxes = [torch.randn(*s[:-1], 4) for s in shapes]
opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=on_gpu)


def step():
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        outs = model(images)
    loss = sum(scale_loss(o.float(), lab, b) for o, lab, b in zip(outs, labels, boxes, strict=True))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


for _ in range(8 if on_gpu else 1):
    loss = step()
loss.item()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    for _ in range(n):
        loss = step()
    done += n
    print(f"step {done} loss {loss.item():.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "c01_detector_loss",
            "variant": args.variant,
        }
    )
)
