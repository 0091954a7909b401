"""Train a transformer on 2 GPUs with DistributedDataParallel and gradient accumulation.

torchrun --standalone --nproc_per_node 2 b06_accumulate_ddp.py      One step is one optimizer update.
"""

import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
on_gpu = args.device == "cuda"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if on_gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dev = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    V, D, L, H, T, B, MICRO = 16384, 2048, 8, 16, 512, 2, 6
    dist.init_process_group("nccl", device_id=dev)
else:
    dev = torch.device("cpu")
    V, D, L, H, T, B, MICRO = 64, 32, 2, 2, 16, 2, 3
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


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


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, xy):
        x = self.emb(xy[:, :-1])
        for b in self.blocks:
            x = b(x)
        return F.cross_entropy(self.head(self.norm(x)).reshape(-1, V), xy[:, 1:].reshape(-1))


with dev:
    net = LM()
model = DistributedDataParallel(net, device_ids=[dev.index] if on_gpu else None, gradient_as_bucket_view=True)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
pool = torch.randint(0, V, (32, B, T + 1), generator=torch.Generator().manual_seed(rank))
if on_gpu:
    pool = pool.pin_memory()
count = 0


def step():
    global count
    total = torch.zeros((), device=dev)
    for m in range(MICRO):
        xy = pool[count % 32].to(dev, non_blocking=True)
        count += 1
        hold = args.variant == "mended" and m < MICRO - 1
        with model.no_sync() if hold else contextlib.nullcontext():
            with torch.autocast(dev.type, dtype=torch.bfloat16):
                loss = model(xy) / MICRO
            loss.backward()
        total += loss.detach()
    opt.step()
    opt.zero_grad(set_to_none=False)
    return total


for _ in range(4 if on_gpu else 1):
    loss = step()
loss.item()
dist.barrier()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    for _ in range(n):
        loss = step()
    done += n
    value = loss.item()
    if rank == 0:
        print(f"update {done} loss {value:.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
dist.barrier()
if rank == 0:
    print(
        json.dumps(
            {
                "step_ms_median": round(statistics.median(per_step), 4),
                "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
                "steps": args.steps,
                "program": "b06_accumulate_ddp",
                "variant": args.variant,
                "ranks": world,
            }
        ),
        flush=True,
    )
dist.destroy_process_group()
