"""Train a graph convolution on citations. Cause: the sparse matrix of the graph was never coalesced.

``torch.sparse.mm`` sorts and sums the entries of a COO matrix that is not coalesced in each call, and those
of its transpose in each backward pass, although the graph never changes. Mended by one ``coalesce()`` before
the training and by using that matrix, which is symmetric, in the backward pass too. Reported:
https://github.com/dmlc/dgl/pull/427 (coalescing in each product is costly, backward too),
https://github.com/pytorch/pytorch/issues/10757.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
PAPERS, LINKS, WIDTH, LAYERS, NAMES = (64, 256, 8, 2, 4) if steps.SMALL else (200_000, 1_600_000, 128, 4, 40)


def graph():
    """Return the normalized links, in both directions, of papers that cite each other."""
    source = torch.randint(0, PAPERS, (LINKS,), device=DEV)
    target = (torch.rand(LINKS, device=DEV) ** 2 * PAPERS).long()
    pairs = torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1)
    degree = torch.bincount(pairs[0], minlength=PAPERS).clamp(min=1).float()
    values = (degree[pairs[0]] * degree[pairs[1]]).rsqrt()
    return torch.sparse_coo_tensor(pairs, values, (PAPERS, PAPERS))


class Spread(torch.autograd.Function):
    """Product with a symmetric sparse matrix."""

    @staticmethod
    def forward(ctx, matrix, h):
        ctx.matrix = matrix
        return torch.sparse.mm(matrix, h)

    @staticmethod
    def backward(ctx, gradient):
        return None, torch.sparse.mm(ctx.matrix, gradient)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, h, spread):
        return h + nn.functional.dropout(spread(self.mix(self.norm(h))).relu(), 0.2)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(100, WIDTH), nn.Linear(WIDTH, NAMES)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, words, spread):
        h = self.first(words)
        for layer in self.layers:
            h = layer(h, spread)
        return self.last(h)


def build(fixed):
    torch.manual_seed(0)
    links = graph()
    if fixed:
        links = links.coalesce()
    words = torch.randn(PAPERS, 100, device=DEV)
    names = torch.randint(0, NAMES, (PAPERS,), device=DEV)
    model = Network().to(DEV)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=DEV == "cuda")

    def spread(h):
        return Spread.apply(links, h) if fixed else torch.sparse.mm(links, h)

    def step(i):
        loss = nn.functional.cross_entropy(model(words, spread), names)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    steps.main(build, 100)
