"""Fine-tune a causal language model with a trainer-like loop on sequences padded per batch."""

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
V, D, H, L, T, B = (32000, 1024, 16, 12, 1024, 4) if on_gpu else (128, 32, 2, 2, 32, 2)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return F.cross_entropy(self.head(self.norm(x[:, :-1])).reshape(-1, V), ids[:, 1:].reshape(-1))


class Trainer:
    def __init__(self):
        with dev:
            self.model = Model().to(torch.bfloat16 if on_gpu else torch.float32)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=on_gpu)
        g = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(T // 2, T // 64 + T, (512,), generator=g).clamp(max=T).tolist()
        self.tokens = torch.randint(0, V, (B, T), generator=g)
        if on_gpu:
            self.tokens = self.tokens.pin_memory()
        self.count = 0

    def training_step(self):
        t = self.lengths[self.count % 512] // 8 * 8
        self.count += 1
        ids = self.tokens.to(dev, non_blocking=True)[:, :t]
        loss = self.model(ids)
        if args.variant == "planted" and on_gpu:
            torch.cuda.empty_cache()
        loss.backward()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return loss.detach()


tr = Trainer()
for _ in range(6 if on_gpu else 1):
    loss = tr.training_step()
loss.item()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    acc = torch.zeros((), device=dev)
    for _ in range(n):
        acc += tr.training_step()
    done += n
    print(f"step {done} loss {acc.item() / n:.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "b05_finetune_loop",
            "variant": args.variant,
        }
    )
)
