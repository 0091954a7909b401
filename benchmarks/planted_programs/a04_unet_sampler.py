"""Sample latents with a UNet denoiser (deterministic DDIM steps, half precision)."""

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
B, C, SIZE, LOG, dt = (16, 192, 64, 10, torch.bfloat16) if on_gpu else (1, 16, 16, 2, torch.float32)
torch.manual_seed(0)


class ChannelNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x):
        y = F.layer_norm(x.permute(0, 2, 3, 1), (self.c,), self.weight, self.bias)
        y = y.permute(0, 3, 1, 2)
        if args.variant == "planted":
            y = y.contiguous()
        return y


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.n1, self.n2 = ChannelNorm(cin), ChannelNorm(cout)
        self.c1, self.c2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.t = nn.Linear(temb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.c2(F.silu(self.n2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        e, ch = 4 * C, [C, 2 * C, 2 * C]
        self.time = nn.Sequential(nn.Linear(C, e), nn.SiLU(), nn.Linear(e, e), nn.SiLU())
        self.inp = nn.Conv2d(4, C, 3, padding=1)
        self.down, self.pool = nn.ModuleList(), nn.ModuleList()
        cin = C
        for c in ch:
            self.down.append(nn.ModuleList([ResBlock(cin, c, e), ResBlock(c, c, e)]))
            self.pool.append(nn.Conv2d(c, c, 3, 2, 1))
            cin = c
        self.mid = ResBlock(cin, cin, e)
        self.up = nn.ModuleList()
        for c in reversed(ch):
            self.up.append(nn.ModuleList([ResBlock(cin + c, c, e), ResBlock(c, c, e)]))
            cin = c
        self.norm, self.out = ChannelNorm(cin), nn.Conv2d(cin, 4, 3, padding=1)

    def forward(self, x, t):
        half = C // 2
        f = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        a = t[:, None].float() * f[None]
        t = self.time(torch.cat([a.sin(), a.cos()], 1).to(x.dtype))
        x = self.inp(x)
        skips = []
        for (r1, r2), pool in zip(self.down, self.pool):
            x = r2(r1(x, t), t)
            skips.append(x)
            x = pool(x)
        x = self.mid(x, t)
        for r1, r2 in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = torch.cat([x, skips.pop()], 1)
            x = r2(r1(x, t), t)
        return self.out(F.silu(self.norm(x)))


net = UNet().to(dev, dt).to(memory_format=torch.channels_last).eval()
if on_gpu:
    torch.backends.cudnn.benchmark = True
alphas = torch.linspace(0.999, 0.02, 1000, device=dev)


@torch.inference_mode()
def denoise(x, i, total):
    t = 999 - (i * 999) // total
    t_prev = max(999 - ((i + 1) * 999) // total, 0)
    eps = net(x, torch.full((B,), t, device=dev))
    a, b = alphas[t].to(dt), alphas[t_prev].to(dt)
    x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
    return b.sqrt() * x0.clamp(-3, 3) + (1 - b).sqrt() * eps


x = torch.randn(B, 4, SIZE, SIZE, device=dev, dtype=dt).to(memory_format=torch.channels_last)
for i in range(5 if on_gpu else 1):
    denoise(x, i, 60)
if on_gpu:
    torch.cuda.synchronize()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(LOG, args.steps - done)
    for i in range(n):
        x = denoise(x, done + i, args.steps)
    done += n
    print(f"step {done} latent std {x.float().std().item():.3f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "a04_unet_sampler",
            "variant": args.variant,
        }
    )
)
