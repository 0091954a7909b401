"""Train a convolutional network for many short epochs with DataLoader workers."""

import argparse
import json
import statistics
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
dev = torch.device(args.device)
on_gpu = dev.type == "cuda"
ITEMS, BATCH, SIDE, WIDTH, WORKERS = (1280, 128, 96, 64, 8) if on_gpu else (40, 4, 24, 8, 2)
torch.manual_seed(0)


class Pictures(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.data = rng.integers(0, 256, (ITEMS, SIDE, SIDE, 3), dtype=np.uint8)
        self.label = rng.integers(0, 50, ITEMS)
        self.order = None

    def __len__(self):
        return ITEMS

    def __getitem__(self, i):
        if self.order is None:
            names = [f"{k * 7919 % 100003:06d}" for k in range(60_000 if on_gpu else 1000)]
            self.order = {n: k for k, n in enumerate(sorted(names))}
        x = self.data[i]
        if np.random.random() < 0.5:
            x = x[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1))), int(self.label[i])


def net():
    w, parts, cin = WIDTH, [], 3
    for cout, s in [(w, 1), (w, 2), (2 * w, 1), (2 * w, 2), (4 * w, 1), (4 * w, 2)]:
        parts += [nn.Conv2d(cin, cout, 3, s, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
        cin = cout
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 50))


def main():
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Pictures(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=on_gpu,
        persistent_workers=args.variant == "mended",
    )
    model = net().to(dev, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=True)
    per_epoch = ITEMS // BATCH

    def epoch(limit):
        done = 0
        for x, y in loader:
            x = x.to(dev, non_blocking=True).float().div_(255).contiguous(memory_format=torch.channels_last)
            y = y.to(dev, non_blocking=True)
            with torch.autocast(dev.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            done += 1
            if done == limit:
                break
        return done, loss.item()

    epoch(per_epoch)
    per_step, done = [], 0
    t0 = begin = time.perf_counter()
    while done < args.steps:
        n, loss = epoch(min(per_epoch, args.steps - done))
        done += n
        print(f"step {done} loss {loss:.4f}", flush=True)
        t1 = time.perf_counter()
        per_step.append((t1 - t0) / n * 1e3)
        t0 = t1
    print(
        json.dumps(
            {
                "step_ms_median": round(statistics.median(per_step), 4),
                "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
                "steps": args.steps,
                "program": "b09_short_epochs",
                "variant": args.variant,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
