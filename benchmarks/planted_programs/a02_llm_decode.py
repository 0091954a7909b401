"""Greedy decoding with a Llama-like model and a preallocated key/value cache.

One step produces CHUNK tokens for every sequence of the batch and hands them to the client.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
dev = torch.device(args.device)
on_gpu = dev.type == "cuda"
if on_gpu:
    V, D, FF, L, H, B, S, CHUNK, dt = 32000, 2048, 5504, 16, 16, 4, 2048, 16, torch.bfloat16
else:
    V, D, FF, L, H, B, S, CHUNK, dt = 128, 32, 64, 2, 2, 2, 256, 4, torch.float32
HD = D // H
torch.manual_seed(0)


def w(*shape):
    return torch.randn(*shape, device=dev, dtype=dt) * 0.02


layers = [
    dict(
        qkv=w(3 * D, D),
        o=w(D, D),
        gu=w(2 * FF, D),
        down=w(D, FF),
        n1=torch.ones(D, device=dev, dtype=dt),
        n2=torch.ones(D, device=dev, dtype=dt),
        k=torch.zeros(B, H, S, HD, device=dev, dtype=dt),
        v=torch.zeros(B, H, S, HD, device=dev, dtype=dt),
    )
    for _ in range(L)
]
emb = w(V, D)
norm = torch.ones(D, device=dev, dtype=dt)
slots = torch.arange(S, device=dev)
freq = 1.0 / (10000 ** (torch.arange(0, HD, 2, device=dev).float() / HD))
ang = slots.float()[:, None] * freq[None]
COS, SIN = ang.cos().to(dt), ang.sin().to(dt)


def rope(x, pos):
    c, s = COS[pos].view(1, 1, 1, -1), SIN[pos].view(1, 1, 1, -1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * c - b * s, a * s + b * c), dim=-1)


def next_token(tok, pos):
    x = emb[tok]
    mask = (slots <= pos).view(1, 1, 1, S)
    for l in layers:
        h = F.rms_norm(x, (D,), l["n1"])
        q, k, v = (z.view(B, 1, H, HD).transpose(1, 2) for z in F.linear(h, l["qkv"]).chunk(3, -1))
        q, k = rope(q, pos), rope(k, pos)
        l["k"].index_copy_(2, pos, k)
        l["v"].index_copy_(2, pos, v)
        a = F.scaled_dot_product_attention(q, l["k"], l["v"], attn_mask=mask)
        x = x + F.linear(a.transpose(1, 2).reshape(B, 1, D), l["o"])
        h = F.rms_norm(x, (D,), l["n2"])
        g, u = F.linear(h, l["gu"]).chunk(2, -1)
        x = x + F.linear(F.silu(g) * u, l["down"])
    return F.linear(F.rms_norm(x, (D,), norm), emb).argmax(-1)


class Decoder:
    def __init__(self):
        self.tok = torch.zeros(B, 1, dtype=torch.long, device=dev)
        self.pos = torch.zeros(1, dtype=torch.long, device=dev)
        self.graph = None

    def advance(self):
        self.tok.copy_(next_token(self.tok, self.pos))
        self.pos.add_(1).remainder_(S)

    def prepare(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.advance()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.advance()

    def chunk(self):
        out = []
        for _ in range(CHUNK):
            if self.graph is None:
                self.advance()
            else:
                self.graph.replay()
            out.append(self.tok.clone())
        return torch.cat(out, 1).tolist()


with torch.inference_mode():
    dec = Decoder()
    if args.variant == "mended" and on_gpu:
        dec.prepare()
    for _ in range(3):
        dec.chunk()
    if on_gpu:
        torch.cuda.synchronize()
    times, sent = [], 0
    for i in range(args.steps):
        t0 = time.perf_counter()
        sent += sum(map(len, dec.chunk()))
        times.append((time.perf_counter() - t0) * 1e3)
print(f"{sent} tokens")
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(times), 4),
            "step_ms_mean": round(statistics.fmean(times), 4),
            "steps": args.steps,
            "program": "a02_llm_decode",
            "variant": args.variant,
        }
    )
)
