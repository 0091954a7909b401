"""Tag sequences with a GRU whose cell is stepped through in a loop over time."""

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
BATCH, TIME, DIM, TAGS = (64, 96, 512, 50) if on_gpu else (2, 6, 16, 5)
torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5000, DIM)
        self.cell = nn.GRUCell(DIM, DIM)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.out = nn.Linear(DIM, TAGS)

    def forward(self, ids):
        x = self.emb(ids)
        if args.variant == "mended":
            return self.out(self.rnn(x)[0])
        h = x.new_zeros(ids.shape[0], DIM)
        states = []
        for t in range(ids.shape[1]):
            h = self.cell(x[:, t], h)
            states.append(h)
        return self.out(torch.stack(states, 1))


torch.set_float32_matmul_precision("high")
with dev:
    model = Tagger()
    ids = torch.randint(0, 5000, (BATCH, TIME))
    tags = torch.randint(0, TAGS, (BATCH, TIME))
unused = "rnn" if args.variant == "planted" else "cell"
used = [p for n, p in model.named_parameters() if not n.startswith(unused)]
opt = torch.optim.Adam(used, lr=1e-3, fused=on_gpu)


def step():
    loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
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
            "program": "c02_gru_tagger",
            "variant": args.variant,
        }
    )
)
