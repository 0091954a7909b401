"""Score a catalogue for queries, Triton. Cause: the kernel is tuned for each number of rows."""

import blocks as loop
import torch
import triton
import triton.language as tl

D, ITEMS = 512, 262144
CONFIGS = [
    triton.Config({"ROWS": r, "COLS": c}, num_warps=w, num_stages=3)
    for r, c, w in ((64, 128, 4), (128, 128, 8), (128, 256, 8))
]


@triton.autotune(CONFIGS, key=["tuned_for"], warmup=2, rep=5)
@triton.jit
def best(queries, items, scores, n, m, tuned_for, D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for d in range(0, D, 64):
        at = d + tl.arange(0, 64)
        q = tl.load(queries + rows[:, None] * D + at[None, :], mask=rows[:, None] < n, other=0.0)
        x = tl.load(items + cols[None, :] * D + at[:, None])
        total = tl.dot(q, x, total)
    tl.atomic_max(scores + rows, tl.max(total, 1), mask=rows < n)


def build():
    torch.manual_seed(0)
    items = torch.randn(ITEMS, D, device="cuda", dtype=torch.bfloat16)
    tower = torch.nn.Sequential(torch.nn.Linear(D, 8192), torch.nn.GELU(), torch.nn.Linear(8192, D)).to(
        "cuda", torch.bfloat16
    )
    words = torch.randn(8192, D, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(cause, i):
        n = 4096 + i * 37 % 2048
        queries = tower(words[:n])
        scores = torch.full((n,), -1e9, device="cuda")
        grid = lambda meta: (triton.cdiv(n, meta["ROWS"]), ITEMS // meta["COLS"])
        best[grid](queries, items, scores, n, ITEMS, n if cause else 8192, D)

    return step


if __name__ == "__main__":
    loop.main(build)
