"""Train a small GPT language model on a token stream held in host memory."""

import argparse
import json
import math
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
if on_gpu:
    V, D, L, H, T, B = 32768, 1024, 12, 16, 1024, 8
else:
    V, D, L, H, T, B = 256, 64, 2, 4, 32, 2
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        mask = torch.full((T, T), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, D // H).transpose(1, 2) for z in self.qkv(x).split(D, dim=2))
        if args.variant == "planted":
            s = q @ k.transpose(-2, -1) / math.sqrt(D // H)
            s = s + self.mask[:t, :t]
            p = F.softmax(s.float(), dim=-1).to(v.dtype)
            y = p @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.LayerNorm(D)

    def forward(self, idx, target):
        x = self.tok(idx) + self.pos.weight[: idx.size(1)]
        for b in self.blocks:
            x = b(x)
        logits = self.norm(x) @ self.tok.weight.t()
        return F.cross_entropy(logits.view(-1, V), target.reshape(-1))


with dev:
    model = GPT()
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=0.02)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=on_gpu)
stream = torch.randint(0, V, (2_000_000 if on_gpu else 20_000,))
gen = torch.Generator().manual_seed(1)


def get_batch():
    i = torch.randint(0, len(stream) - T - 1, (B,), generator=gen)
    xy = torch.stack([stream[j : j + T + 1] for j in i])
    if on_gpu:
        xy = xy.pin_memory().to(dev, non_blocking=True)
    return xy[:, :-1], xy[:, 1:]


def train_step():
    x, y = get_batch()
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        loss = model(x, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss


for _ in range(8 if on_gpu else 1):
    loss = train_step()
loss.item()

per_step, done, t0 = [], 0, time.perf_counter()
begin = t0
while done < args.steps:
    n = min(10, args.steps - done)
    for _ in range(n):
        loss = train_step()
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
            "program": "a01_gpt_train",
            "variant": args.variant,
        }
    )
)
