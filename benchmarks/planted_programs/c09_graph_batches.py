"""Train GraphSAGE on batches of sampled nodes whose features are gathered by node number."""

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
NODES, WIDTH, BATCH, FAN, POOL = (1_000_000, 128, 4096, 10, 16) if on_gpu else (500, 16, 16, 3, 4)
torch.manual_seed(0)


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.near = nn.Linear(WIDTH, 1024), nn.Linear(WIDTH, 1024)
        self.hidden = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(1024, 1024), nn.ReLU())))
        self.out = nn.Linear(1024, 47)

    def forward(self, x, near):
        h = F.relu(self.own(x) + self.near(near.view(x.shape[0], FAN, WIDTH).mean(1)))
        return self.out(self.hidden(h))


torch.set_float32_matmul_precision("high")
features = torch.randn(NODES, WIDTH)
if args.variant == "mended":
    features = features.to(dev)
batches = [torch.randint(0, NODES, (BATCH * (1 + FAN),)) for _ in range(POOL)]
with dev:
    model = Sage()
    labels = torch.randint(0, 47, (BATCH,))
opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=on_gpu)
count = 0


def step():
    global count
    nodes = batches[count % POOL]
    count += 1
    x = features[nodes].to(dev) if args.variant == "planted" else features[nodes.to(dev)]
    loss = F.cross_entropy(model(x[:BATCH], x[BATCH:]), labels)
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
            "program": "c09_graph_batches",
            "variant": args.variant,
        }
    )
)
