"""Train user and item embeddings with large vocabularies (two towers, in-batch softmax)."""

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
USERS, ITEMS, DIM, BATCH = (3_000_000, 3_000_000, 128, 4096) if on_gpu else (5000, 5000, 16, 64)
torch.manual_seed(0)
sparse = args.variant == "mended"


class Tower(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.emb = nn.Embedding(rows, DIM, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(DIM, 512), nn.ReLU(), nn.Linear(512, DIM))

    def forward(self, ids):
        return F.normalize(self.mlp(self.emb(ids)), dim=-1)


with dev:
    users, items = Tower(USERS), Tower(ITEMS)
tables = [users.emb.weight, items.emb.weight]
dense = list(users.mlp.parameters()) + list(items.mlp.parameters())
if sparse:
    opts = [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(dense, lr=1e-3)]
else:
    opts = [torch.optim.Adam(tables + dense, lr=1e-3)]
pairs = torch.stack([torch.randint(0, USERS, (64, BATCH)), torch.randint(0, ITEMS, (64, BATCH))], 1)
if on_gpu:
    pairs = pairs.pin_memory()
count = 0
labels = torch.arange(BATCH, device=dev)


def step():
    global count
    u, i = pairs[count % 64].to(dev, non_blocking=True)
    count += 1
    loss = F.cross_entropy(users(u) @ items(i).t() / 0.07, labels)
    for o in opts:
        o.zero_grad(set_to_none=True)
    loss.backward()
    for o in opts:
        o.step()
    return loss


for _ in range(6 if on_gpu else 1):
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
            "program": "b01_item_towers",
            "variant": args.variant,
        }
    )
)
