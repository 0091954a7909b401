"""Run a mixture-of-experts language model block by block (128 experts, 8 per token), as in prompt scoring."""

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
D, FF, E, K, L, H, B, T, dt = (
    (2048, 768, 128, 8, 4, 16, 2, 1024, torch.bfloat16)
    if on_gpu
    else (32, 16, 8, 2, 2, 2, 2, 16, torch.float32)
)
torch.manual_seed(0)


def w(*shape):
    return torch.randn(*shape, device=dev, dtype=dt) * 0.02


class Layer:
    def __init__(self):
        self.qkv, self.out, self.router = w(3 * D, D), w(D, D), w(E, D)
        self.gate_up, self.down = w(E, D, 2 * FF), w(E, FF, D)
        self.n1, self.n2 = torch.ones(D, device=dev, dtype=dt), torch.ones(D, device=dev, dtype=dt)

    def mix(self, x):
        b, t, _ = x.shape
        q, k, v = F.linear(x, self.qkv).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(a.transpose(1, 2).reshape(b, t, D), self.out)

    def experts(self, x):
        weight, pick = F.softmax(F.linear(x, self.router).float(), -1).topk(K, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        if args.variant == "planted":
            return self.experts_by_index(x, weight, pick)
        return self.experts_grouped(x, weight, pick)

    def experts_by_index(self, x, weight, pick):
        out = torch.zeros_like(x)
        chosen = F.one_hot(pick, E).permute(2, 1, 0)
        for e in range(E):
            slot, token = torch.where(chosen[e])
            g, u = (x[token] @ self.gate_up[e]).chunk(2, -1)
            h = (F.silu(g) * u) @ self.down[e]
            out.index_add_(0, token, h * weight[token, slot, None])
        return out

    def experts_grouped(self, x, weight, pick):
        flat = pick.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=E)
        first = counts.cumsum(0) - counts
        room = int(counts.max())
        owner = flat[order]
        place = torch.arange(flat.numel(), device=dev) - first[owner]
        token = order // K
        packed = x.new_zeros(E, room, D)
        packed[owner, place] = x[token]
        g, u = torch.bmm(packed, self.gate_up).chunk(2, -1)
        h = torch.bmm(F.silu(g) * u, self.down)[owner, place]
        out = torch.zeros_like(x)
        return out.index_add_(0, token, h * weight.flatten()[order, None])

    def __call__(self, x):
        x = x + self.mix(F.rms_norm(x, (D,), self.n1))
        y = self.experts(F.rms_norm(x, (D,), self.n2).view(-1, D))
        return x + y.view_as(x)


layers = [Layer() for _ in range(L)]
prompts = [torch.randn(B, T, D, device=dev, dtype=dt) for _ in range(4)]


@torch.inference_mode()
def step(i):
    x = prompts[i % 4]
    for l in layers:
        x = l(x)
    return x.float().square().mean()


for i in range(5 if on_gpu else 1):
    score = step(i)
score.item()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    for i in range(n):
        score = step(done + i)
    done += n
    print(f"prompt {done} score {score.item():.5f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "b10_moe_forward",
            "variant": args.variant,
        }
    )
)
