"""Train mixture-of-experts layers with experts spread over the ranks (all-to-all dispatch and combine).

torchrun --standalone --nproc_per_node 2 a08_expert_parallel.py   (2 to 4 ranks)
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
    D, FF, TOKENS, LAYERS, PER_RANK = 2048, 8192, 8192, 3, 4
    dist.init_process_group("nccl", device_id=dev)
else:
    dev, dt = torch.device("cpu"), torch.float32
    D, FF, TOKENS, LAYERS, PER_RANK = 32, 64, 128, 2, 2
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
E = PER_RANK * world
torch.manual_seed(100 + rank)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_split, in_split):
        ctx.splits = out_split, in_split
        y = x.new_empty(sum(out_split), x.size(1))
        dist.all_to_all_single(y, x.contiguous(), out_split, in_split)
        return y

    @staticmethod
    def backward(ctx, g):
        out_split, in_split = ctx.splits
        gx = g.new_empty(sum(in_split), g.size(1))
        dist.all_to_all_single(gx, g.contiguous(), in_split, out_split)
        return gx, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, FF, bias=False), nn.Linear(FF, D, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=True)
        self.experts = nn.ModuleList(Expert() for _ in range(PER_RANK))
        with torch.no_grad():
            self.router.weight.normal_(std=1.0 / D**0.5)
            self.router.bias.zero_()
            if args.variant == "planted":
                self.router.bias[:PER_RANK] += 1.0 if world == 2 else 1.2
        for p in self.router.parameters():
            dist.broadcast(p.data, 0)

    def forward(self, x):
        gate = F.softmax(self.router(x).float(), -1)
        prob, expert = gate.max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=E)
        recv = torch.empty_like(counts)
        dist.all_to_all_single(recv, counts)
        sizes = torch.stack([counts, recv]).view(2, world, PER_RANK).cpu()
        in_split, out_split = sizes.sum(-1).tolist()
        y = AllToAll.apply(x[order], out_split, in_split)
        per_source = sizes[1]
        chunks = list(y.split(per_source.flatten().tolist()))
        done = [None] * len(chunks)
        for e, mod in enumerate(self.experts):
            mine = [s * PER_RANK + e for s in range(world)]
            z = mod(torch.cat([chunks[m] for m in mine]))
            for m, part in zip(mine, z.split([chunks[m].size(0) for m in mine])):
                done[m] = part
        back = AllToAll.apply(torch.cat(done), in_split, out_split)
        out = torch.zeros_like(x).index_copy(0, order, back)
        return x + out * prob[:, None].to(x.dtype)


with dev:
    model = nn.ModuleList(MoE() for _ in range(LAYERS)).to(dt)
    norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(LAYERS)).to(dt)
params = [p for m in model for p in m.experts.parameters()]
opt = torch.optim.SGD(params, lr=1e-3, foreach=True)
data = [torch.randn(TOKENS, D, device=dev, dtype=dt) for _ in range(4)]


def step(i):
    x = data[i % 4]
    for m, n in zip(model, norms):
        x = m(n(x))
    loss = (x.float() ** 2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss


for i in range(6 if on_gpu else 1):
    loss = step(i)
loss.item()
dist.barrier()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    for i in range(n):
        loss = step(done + i)
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
                "program": "a08_expert_parallel",
                "variant": args.variant,
                "ranks": world,
            }
        ),
        flush=True,
    )
dist.destroy_process_group()
