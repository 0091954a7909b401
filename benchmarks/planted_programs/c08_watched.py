"""Train a convolutional classifier and keep a histogram of each gradient, as experiment trackers do."""

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
SIZE, WIDTH, DEPTH, BATCH = (64, 256, 12, 64) if on_gpu else (8, 8, 2, 2)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
with dev:
    layers = [nn.Conv2d(3, WIDTH, 3, 1, 1), nn.ReLU()]
    for at in range(DEPTH):
        stride = 2 if at in (3, 7) else 1
        layers += [nn.Conv2d(WIDTH, WIDTH, 3, stride, 1), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 100)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    images = torch.randn(BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (BATCH,))
opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=on_gpu)
history, count, EVERY = {}, 0, 1 if args.variant == "planted" else 1000


def watch(name):
    """Return a hook that logs the histogram of a parameter's gradient."""

    def log(grad):
        if count % EVERY == 0:
            flat = grad.detach().float().reshape(-1)
            low, high = flat.min().item(), flat.max().item()
            history[name] = (torch.histc(flat, 64, min=low, max=high).tolist(), low, high)
        return grad

    return log


for name, parameter in model.named_parameters():
    parameter.register_hook(watch(name))


def step():
    global count
    count += 1
    loss = F.cross_entropy(model(images), labels)
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
            "program": "c08_watched",
            "variant": args.variant,
        }
    )
)
