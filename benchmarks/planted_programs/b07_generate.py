"""Generate text greedily with a GPT-like model. One step is one new token for every sequence."""

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
V, D, H, L, B, PROMPT, dt = (
    (30000, 1536, 16, 16, 16, 1024, torch.bfloat16) if on_gpu else (128, 32, 2, 2, 2, 24, torch.float32)
)
torch.manual_seed(0)
use_cache = args.variant == "mended"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, past):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.n2(x)), (k, v)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Embedding(8 * PROMPT, D)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(D)

    def forward(self, ids, past, start):
        x = self.emb(ids) + self.pos.weight[start : start + ids.size(1)]
        kept = []
        for i, b in enumerate(self.blocks):
            x, kv = b(x, past[i] if past else None)
            kept.append(kv)
        return F.linear(self.norm(x[:, -1]), self.emb.weight), kept


with dev:
    model = LM().to(dt).eval()


@torch.inference_mode()
def run(new_tokens, times):
    ids = torch.randint(0, V, (B, PROMPT), generator=torch.Generator().manual_seed(1)).to(dev)
    past, feed, start = None, ids, 0
    logits, kept = model(feed, None, 0)
    for _ in range(new_tokens):
        t0 = time.perf_counter()
        tok = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, tok], 1)
        stop = (tok == V - 1).all().item()
        if stop:
            break
        if use_cache:
            logits, kept = model(tok, kept, ids.size(1) - 1)
        else:
            logits, _ = model(ids, None, 0)
        times.append((time.perf_counter() - t0) * 1e3)
    last = time.perf_counter()
    if on_gpu:
        torch.cuda.synchronize()
    return ids, (time.perf_counter() - last) * 1e3


run(6 if on_gpu else 1, [])
times = []
ids, tail = run(args.steps, times)
times[-1] += tail
print("checksum", int(ids[:, PROMPT:].sum()))
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(times), 4),
            "step_ms_mean": round(sum(times) / args.steps, 4),
            "steps": args.steps,
            "program": "b07_generate",
            "variant": args.variant,
        }
    )
)
