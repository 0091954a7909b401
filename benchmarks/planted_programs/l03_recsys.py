"""Train a prediction of clicks. Cause: gradients of two large tables are dense; Adam updates every row."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
ROWS, D, B = (1000, 8, 32) if loop.SMALL else (3_000_000, 64, 16384)


class Clicks(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.users, self.items = nn.Embedding(ROWS, D, sparse=sparse), nn.Embedding(ROWS, D, sparse=sparse)
        self.small = nn.ModuleList(nn.Embedding(1000, D) for _ in range(6))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, D), nn.ReLU())
        wide = 36 + D
        h = 64 if loop.SMALL else 2048
        self.top = nn.Sequential(
            nn.Linear(wide, h),
            nn.ReLU(),
            nn.Linear(h, h),
            nn.ReLU(),
            nn.Linear(h, h),
            nn.ReLU(),
            nn.Linear(h, 1),
        )
        self.register_buffer("pairs", torch.triu_indices(9, 9, 1))

    def forward(self, dense, users, items, rest):
        x = self.bottom(dense)
        all_ = torch.stack(
            [x, self.users(users), self.items(items), *(e(rest[:, i]) for i, e in enumerate(self.small))], 1
        )
        dots = torch.bmm(all_, all_.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, dots], 1)).squeeze(1)


def build():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    ways = {}

    def variant(cause):
        model = Clicks(sparse=not cause).to(DEV)
        tables = [model.users.weight, model.items.weight]
        others = [p for n, p in model.named_parameters() if not n.startswith(("users", "items"))]
        if cause:
            return model, [torch.optim.Adam(tables + others, 1e-3)]
        return model, [torch.optim.SparseAdam(tables, 1e-3), torch.optim.Adam(others, 1e-3)]

    batches = [
        (
            torch.randn(B, 13),
            torch.randint(0, ROWS, (B,)),
            torch.randint(0, ROWS, (B,)),
            torch.randint(0, 1000, (B, 6)),
            torch.rand(B).round(),
        )
        for _ in range(8)
    ]
    if DEV == "cuda":
        batches = [tuple(t.pin_memory() for t in b) for b in batches]
    count = [0]

    def step(cause, i):
        if cause not in ways:
            ways[cause] = variant(cause)
        model, optimizers = ways[cause]
        dense, users, items, rest, clicked = (t.to(DEV, non_blocking=True) for t in batches[count[0] % 8])
        count[0] += 1
        loss = F.binary_cross_entropy_with_logits(model(dense, users, items, rest), clicked)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        return loss

    return step


if __name__ == "__main__":
    loop.main(build)
