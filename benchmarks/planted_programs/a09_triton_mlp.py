"""Run a stack of gated MLP blocks: Triton kernels for residual+norm and gating, cuBLAS for the products."""

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
ROWS, D, FF, L, dt = (16384, 4096, 11008, 6, torch.bfloat16) if on_gpu else (32, 64, 128, 2, torch.float32)
torch.manual_seed(0)

if on_gpu:
    import triton
    import triton.language as tl

    @triton.jit
    def add_rms_norm_kernel(x, r, w, y, D: tl.constexpr, eps):
        row = tl.program_id(0).to(tl.int64)
        c = tl.arange(0, D)
        v = tl.load(x + row * D + c).to(tl.float32) + tl.load(r + row * D + c).to(tl.float32)
        tl.store(r + row * D + c, v.to(r.dtype.element_ty))
        s = tl.rsqrt(tl.sum(v * v, 0) / D + eps)
        tl.store(y + row * D + c, (v * s * tl.load(w + c).to(tl.float32)).to(y.dtype.element_ty))

    @triton.jit
    def silu_gate_kernel(gu, y, FF: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        m = c < FF
        g = tl.load(gu + row * 2 * FF + c, mask=m, other=0.0).to(tl.float32)
        u = tl.load(gu + row * 2 * FF + FF + c, mask=m, other=0.0).to(tl.float32)
        tl.store(y + row * FF + c, (g * tl.sigmoid(g) * u).to(y.dtype.element_ty), mask=m)

    def add_rms_norm(x, r, w, y):
        add_rms_norm_kernel[(ROWS,)](x, r, w, y, D, 1e-6, num_warps=8)

    def silu_gate(gu, y):
        silu_gate_kernel[(ROWS, triton.cdiv(FF, 2048))](gu, y, FF, 2048, num_warps=8)
else:

    def add_rms_norm(x, r, w, y):
        r.add_(x)
        y.copy_(F.rms_norm(r, (D,), w, 1e-6))

    def silu_gate(gu, y):
        g, u = gu.chunk(2, -1)
        torch.mul(F.silu(g), u, out=y)


layers = [
    (
        torch.ones(D, device=dev, dtype=dt),
        torch.randn(D, 2 * FF, device=dev, dtype=dt) * D**-0.5,
        torch.randn(FF, D, device=dev, dtype=dt) * FF**-0.5,
    )
    for _ in range(L)
]
x = torch.empty(ROWS, D, device=dev, dtype=dt)
res = torch.empty_like(x)
y = torch.empty_like(x)
gu = torch.empty(ROWS, 2 * FF, device=dev, dtype=dt)
h = torch.empty(ROWS, FF, device=dev, dtype=dt)
source = torch.randn(ROWS, D, device=dev, dtype=dt)


@torch.inference_mode()
def step():
    x.copy_(source)
    res.zero_()
    for w, up, down in layers:
        add_rms_norm(x, res, w, y)
        torch.mm(y, up, out=gu)
        silu_gate(gu, h)
        torch.mm(h, down, out=x)


for _ in range(5 if on_gpu else 1):
    step()
x.sum().item()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(20, args.steps - done)
    for _ in range(n):
        step()
    done += n
    print(f"step {done} mean square {(x.float() ** 2).mean().item():.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "a09_triton_mlp",
            "variant": args.variant,
        }
    )
)
