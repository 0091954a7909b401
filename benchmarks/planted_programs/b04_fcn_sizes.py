"""Train a fully convolutional network on images of many sizes."""

import argparse
import json
import statistics
import time

import numpy as np
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
B, W, LOW, HIGH, HOLD = (4, 64, 400, 600, 4) if on_gpu else (1, 8, 32, 48, 4)
torch.backends.cudnn.benchmark = args.variant == "planted"
torch.manual_seed(0)
rng = np.random.default_rng(0)


def conv(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


net = nn.Sequential(
    conv(3, W, 2),
    conv(W, W),
    conv(W, 2 * W, 2),
    conv(2 * W, 2 * W),
    conv(2 * W, 4 * W, 2),
    conv(4 * W, 4 * W),
    conv(4 * W, 4 * W),
    nn.Conv2d(4 * W, 21, 1),
).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
sizes = [tuple(int(v) for v in rng.integers(LOW, HIGH, 2)) for _ in range(args.steps // HOLD + 8)]
count = 0


def step():
    global count
    h, w = sizes[count // HOLD]
    count += 1
    x = torch.randn(B, 3, h, w, device=dev)
    with torch.autocast(dev.type, dtype=torch.float16 if on_gpu else torch.bfloat16):
        out = net(x)
    y = torch.randint(0, 21, (B, *out.shape[-2:]), device=dev)
    loss = F.cross_entropy(out.float(), y)
    opt.zero_grad(set_to_none=True)
    (loss * 128).backward()
    for p in net.parameters():
        p.grad.div_(128)
    opt.step()
    return loss


for _ in range(2 * HOLD):
    loss = step()
loss.item()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(3 * HOLD, args.steps - done)
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
            "program": "b04_fcn_sizes",
            "variant": args.variant,
        }
    )
)
