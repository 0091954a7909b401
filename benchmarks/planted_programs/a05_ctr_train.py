"""Train a click-through model: 26 categorical columns, 13 numeric columns, embedding table and MLP."""

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
CAT, NUM = 26, 13
ROWS, DIM, BATCH, HID, POOL = (100_000, 64, 16384, 1024, 24) if on_gpu else (500, 8, 64, 32, 4)
torch.manual_seed(0)
rng = np.random.default_rng(0)


def columns():
    cat = {f"c{i}": rng.integers(0, ROWS, BATCH) for i in range(CAT)}
    num = {f"n{i}": rng.random(BATCH, dtype=np.float32) for i in range(NUM)}
    return cat, num, rng.integers(0, 2, BATCH).astype(np.float32)


class Source:
    """A ring of prepared batches in host memory."""

    def __init__(self):
        self.ring, self.at = [], 0
        for _ in range(POOL):
            cat, num, y = columns()
            if args.variant == "planted":
                self.ring.append((cat, num, y))
            else:
                ids = torch.from_numpy(np.stack(list(cat.values())))
                dense = torch.from_numpy(np.stack(list(num.values()) + [y]))
                self.ring.append((ids.pin_memory(), dense.pin_memory()) if on_gpu else (ids, dense))

    def next(self):
        item = self.ring[self.at % POOL]
        self.at += 1
        if args.variant == "planted":
            cat, num, y = item
            ids = torch.stack([torch.from_numpy(c).to(dev) for c in cat.values()])
            dense = torch.stack([torch.from_numpy(c).to(dev) for c in num.values()])
            return ids, dense, torch.from_numpy(y).to(dev)
        ids = item[0].to(dev, non_blocking=True)
        dense = item[1].to(dev, non_blocking=True)
        return ids, dense[:NUM], dense[NUM]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUM, 256), nn.ReLU(), nn.Linear(256, DIM), nn.ReLU())
        n = CAT + 1
        self.top = nn.Sequential(
            nn.Linear(DIM + n * n, HID),
            nn.ReLU(),
            nn.Linear(HID, HID),
            nn.ReLU(),
            nn.Linear(HID, HID),
            nn.ReLU(),
            nn.Linear(HID, 1),
        )

    def forward(self, rows, dense):
        e = rows.view(CAT, BATCH, DIM).transpose(0, 1)
        d = self.bottom(dense.t())
        z = torch.cat([d[:, None], e], 1)
        cross = torch.bmm(z, z.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([d, cross], 1)).squeeze(1)


torch.set_float32_matmul_precision("high")
with dev:
    model = Model()
    table = torch.randn(CAT * ROWS, DIM) * 0.01
    offset = torch.arange(CAT)[:, None] * ROWS
opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=on_gpu)
source = Source()


def step():
    ids, dense, y = source.next()
    flat = (ids + offset).flatten()
    rows = F.embedding(flat, table).requires_grad_()
    loss = F.binary_cross_entropy_with_logits(model(rows, dense), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    table.index_add_(0, flat, rows.grad, alpha=-0.1)  # plain SGD on the rows of this batch
    return loss


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
            "program": "a05_ctr_train",
            "variant": args.variant,
        }
    )
)
