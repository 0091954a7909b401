"""Train a deep residual network on tabular data in single precision."""

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
ROWS, COLUMNS, WIDTH, DEPTH = (8192, 256, 2048, 6) if on_gpu else (32, 8, 16, 2)
torch.manual_seed(0)
if args.variant == "mended":
    torch.set_float32_matmul_precision("high")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


with dev:
    model = nn.Sequential(nn.Linear(COLUMNS, WIDTH), *(Residual() for _ in range(DEPTH)), nn.Linear(WIDTH, 1))
    table, target = torch.randn(4 * ROWS, COLUMNS), torch.randn(4 * ROWS, 1)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
count = 0


def step():
    global count
    begin, count = count % 4 * ROWS, count + 1
    loss = F.mse_loss(model(table[begin : begin + ROWS]), target[begin : begin + ROWS])
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
            "program": "c05_tabular",
            "variant": args.variant,
        }
    )
)
