"""Train a wide transformer on 2 GPUs with DistributedDataParallel.

torchrun --standalone --nproc_per_node 2 a10_ddp_train.py
"""

import argparse
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
    dev, dt = torch.device("cuda", int(os.environ["LOCAL_RANK"])), torch.bfloat16
    V, D, L, H, T, B = 8192, 4096, 3, 32, 1024, 8
    dist.init_process_group("nccl", device_id=dev)
else:
    dev, dt = torch.device("cpu"), torch.float32
    V, D, L, H, T, B = 64, 32, 2, 2, 16, 2
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Parameter(torch.zeros(T, D))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, x, y):
        h = self.tok(x) + self.pos
        for b in self.blocks:
            h = b(h)
        return F.cross_entropy(self.head(self.norm(h)).view(-1, V), y.reshape(-1))


with dev:
    net = LM().to(dt)
model = DistributedDataParallel(
    net,
    device_ids=[dev.index] if on_gpu else None,
    gradient_as_bucket_view=True,
    static_graph=True,
    bucket_cap_mb=100,
)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
pool = torch.randint(0, V, (16, B, T + 1), generator=torch.Generator().manual_seed(rank))
if on_gpu:
    pool = pool.pin_memory()
count = 0


def step():
    global count
    xy = pool[count % 16].to(dev, non_blocking=True)
    count += 1
    loss = model(xy[:, :-1], xy[:, 1:])
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=False)
    return loss


for _ in range(6 if on_gpu else 1):
    loss = step()
loss.item()
dist.barrier()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(20, args.steps - done)
    for _ in range(n):
        loss = step()
    done += n
    value = loss.item()
    if rank == 0:
        print(f"step {done} loss {value:.4f}", flush=True)
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
                "program": "a10_ddp_train",
                "variant": args.variant,
                "ranks": world,
            }
        ),
        flush=True,
    )
dist.destroy_process_group()
