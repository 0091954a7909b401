"""Train a compiled sequence model whose batches have many lengths."""

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
DIM, BATCH, LONGEST = (512, 32, 512) if on_gpu else (16, 2, 64)
torch.manual_seed(0)
torch._dynamo.config.recompile_limit = 1000
torch.set_float32_matmul_precision("high")
NEW_EVERY = 4


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.LayerNorm(DIM), *(nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x):
        x = self.norm(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


def objective(y, target):
    return ((y - target) ** 2 * torch.sigmoid(y)).mean() + y.abs().mean(1).max()


with dev:
    blocks = nn.ModuleList(Mixer() for _ in range(8))
    data = torch.randn(BATCH, LONGEST, DIM)
compiled = torch.compile(objective, dynamic=args.variant == "mended")
opt = torch.optim.Adam(blocks.parameters(), lr=1e-4, fused=on_gpu)
count = 0


def step():
    global count
    time_steps = LONGEST // 2 + count // NEW_EVERY * 2
    count += 1
    x = data[:, :time_steps]
    for block in blocks:
        x = x + block(x)
    loss = compiled(x, data[:, :time_steps])
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
            "program": "c10_compiled_lengths",
            "variant": args.variant,
        }
    )
)
