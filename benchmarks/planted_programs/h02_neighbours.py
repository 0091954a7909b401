"""Train on samples of a large graph. Cause: neighbours are drawn on the host, not on the GPU."""

import blocks as loop
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N, D, B, K = (1000, 8, 16, 3) if loop.SMALL else (500_000, 256, 2048, 12)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    edges = rng.integers(0, N, (N, 32)).astype(np.int64)
    edges_there = torch.from_numpy(edges).to(dev)
    features = torch.randn(N, D, device=dev)
    kinds = torch.randint(0, 50, (N,), device=dev)
    own = nn.ModuleList([nn.Linear(D, 512), nn.Linear(512, 512)]).to(dev)
    near = nn.ModuleList([nn.Linear(D, 512), nn.Linear(512, 512)]).to(dev)
    out = nn.Linear(512, 50).to(dev)
    opt = torch.optim.Adam(
        [*own.parameters(), *near.parameters(), *out.parameters()], 1e-3, fused=dev == "cuda"
    )

    def draw_host(nodes):
        columns = rng.integers(0, 32, (len(nodes), K))
        return np.take_along_axis(edges[nodes], columns, 1)

    def draw(nodes):
        columns = torch.randint(0, 32, (len(nodes), K), device=dev)
        return edges_there[nodes].gather(1, columns)

    def step(cause, i):
        if cause:
            seeds = rng.integers(0, N, B)
            first = draw_host(seeds)
            second = draw_host(first.ravel())
            seeds, first, second = (torch.from_numpy(a).to(dev) for a in (seeds, first, second))
        else:
            seeds = torch.randint(0, N, (B,), device=dev)
            first = draw(seeds)
            second = draw(first.flatten())
        h1 = F.relu(own[0](features[first]) + near[0](features[second].mean(1)).view(B, K, -1))
        h0 = F.relu(own[0](features[seeds]) + near[0](features[first].mean(1)))
        loss = F.cross_entropy(out(F.relu(own[1](h0) + near[1](h1.mean(1)))), kinds[seeds])
        loss.backward()
        opt.step()
        opt.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
