"""Train an encoder with learned relative position biases looked up from a small table in each layer."""

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
D, H, L, T, B, CLIP = (512, 16, 6, 512, 16, 64) if on_gpu else (32, 2, 2, 24, 2, 8)
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
steps_apart = torch.arange(T)[None, :] - torch.arange(T)[:, None]
INDEX = (steps_apart.clamp(-CLIP, CLIP) + CLIP).to(dev)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2 * CLIP + 1, H))
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def bias(self):
        if args.variant == "planted":
            rel = self.table[INDEX]
        else:
            rel = self.table.index_select(0, INDEX.flatten()).view(T, T, H)
        return rel.permute(2, 0, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        s = q @ k.transpose(-2, -1) * (D // H) ** -0.5 + self.bias()
        a = s.softmax(-1).to(v.dtype) @ v
        x = x + self.out(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.n2(x))


with dev:
    layers = nn.Sequential(*[Layer() for _ in range(L)])
    head = nn.Linear(D, 10)
opt = torch.optim.AdamW(list(layers.parameters()) + list(head.parameters()), lr=1e-4, fused=on_gpu)
xs = torch.randn(4, B, T, D, device=dev)
ys = torch.randint(0, 10, (4, B), device=dev)
count = 0


def step():
    global count
    i, count = count % 4, count + 1
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(head(layers(xs[i]).mean(1)).float(), ys[i])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
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
            "program": "b02_relative_encoder",
            "variant": args.variant,
        }
    )
)
