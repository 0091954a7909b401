"""Train two towers for retrieval in bfloat16. Clean: batches come ahead, on a stream of their own."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, B, W = (16, 8, 32) if loop.SMALL else (2048, 16384, 8192)


def tower():
    return nn.Sequential(nn.Linear(D, W), nn.GELU(), nn.Linear(W, W), nn.GELU(), nn.Linear(W, 512))


def build():
    torch.manual_seed(0)
    towers = nn.ModuleList([tower(), tower()]).to(DEV, torch.bfloat16)
    optimizer = torch.optim.AdamW(towers.parameters(), 1e-4, fused=True)
    pairs = [torch.randn(2, B, D).bfloat16() for _ in range(3)]
    target, copies, ahead = torch.arange(B, device=DEV), None, []
    if DEV == "cuda":
        pairs, copies = [each.pin_memory() for each in pairs], torch.cuda.Stream()

    def fetch(i):
        with torch.cuda.stream(copies):
            return pairs[i % 3].to(DEV, non_blocking=True)

    def step(cause, i):
        pair = ahead.pop() if ahead else fetch(i)
        if copies is not None:
            torch.cuda.current_stream().wait_stream(copies)
            pair.record_stream(torch.cuda.current_stream())
        ahead.append(fetch(i + 1))
        query, item = (F.normalize(tower(x), dim=-1) for tower, x in zip(towers, pair, strict=True))
        loss = F.cross_entropy(20 * query @ item.T, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
