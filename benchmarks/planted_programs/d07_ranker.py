"""Train a ranking model: 30 fixed embeddings of 33 numbers and 13 columns, cross layers and a head."""

import torch
import torch.nn.functional as F
from torch import nn
from turns import run


def build(variant, device):
    batch, rows, features, dim, dense = (32768, 50_000, 30, 33, 13) if device == "cuda" else (16, 50, 4, 3, 3)
    width = features * dim + dense
    padded = width if variant == "planted" else (width + 15) // 16 * 16
    torch.manual_seed(0)

    class Ranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.crosses = nn.ModuleList([nn.Linear(padded, padded) for _ in range(4)])
            self.head = nn.Sequential(nn.Linear(padded, 1024), nn.ReLU(), nn.Linear(1024, 1))

        def forward(self, first):
            x = first
            for cross in self.crosses:
                x = torch.addcmul(x, first, cross(x))
            return self.head(x).squeeze(1)

    with torch.device(device):
        model = Ranker()
        table = torch.randn(features * rows, dim, dtype=torch.bfloat16) * 0.1
        offsets = torch.arange(features) * rows
        batches = [
            (
                torch.randint(rows, (batch, features)) + offsets,
                torch.randn(batch, dense, dtype=torch.bfloat16),
            )
            for _ in range(4)
        ]
        clicked = torch.randint(2, (batch,)).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    count = 0

    def step():
        nonlocal count
        ids, numbers = batches[count % 4]
        looked_up = F.embedding(ids, table).flatten(1)
        first = torch.cat([looked_up, F.pad(numbers, (0, padded - width)) if padded > width else numbers], 1)
        with torch.autocast(device, torch.bfloat16):
            logits = model(first)
        loss = F.binary_cross_entropy_with_logits(logits.float(), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += 1

    return step


run("d07_ranker", 100, build, lambda: torch.cuda.is_available() and torch.cuda.synchronize())
