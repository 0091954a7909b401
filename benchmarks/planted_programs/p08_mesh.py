"""Train a graph network on a mesh of a wing. Clean: ``h[source]`` costs nothing today.

The gradient of advanced indexing sorts the indices and adds rows in order; that of ``index_select``, which
``--fixed`` takes, adds them at once. With PyTorch 2.11 the advice saves nothing (39.97 and 40.40 ms on an
H200). Reported: https://github.com/pytorch/pytorch/issues/15245 (backward 2 to 24 times slower),
https://github.com/pytorch/pytorch/issues/5159.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
NODES, EDGES, WIDTH, LAYERS = (64, 256, 8, 2) if steps.SMALL else (60_000, 360_000, 128, 8)


def perceptron(width_in, width_out=WIDTH):
    return nn.Sequential(nn.Linear(width_in, WIDTH), nn.SiLU(), nn.Linear(WIDTH, width_out))


class Messages(nn.Module):
    """Update edges by the nodes at their ends, then nodes by the sum of their edges."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.edge, self.node = perceptron(3 * WIDTH), perceptron(2 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def ends(self, h, source, target):
        if self.fixed:
            return h.index_select(0, source), h.index_select(0, target)
        return h[source], h[target]

    def forward(self, h, e, source, target):
        e = e + self.edge(torch.cat([*self.ends(h, source, target), e], -1))
        total = torch.zeros_like(h).index_add_(0, target, e.to(h.dtype))
        return h + self.norm(self.node(torch.cat([h, total], -1))), e


class MeshNet(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.nodes, self.edges, self.out = perceptron(6), perceptron(4), perceptron(WIDTH, 3)
        self.layers = nn.ModuleList(Messages(fixed) for _ in range(LAYERS))

    def forward(self, x, lengths, source, target):
        h, e = self.nodes(x), self.edges(lengths)
        for layer in self.layers:
            h, e = layer(h, e, source, target)
        return self.out(h)


def build(fixed):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    source = torch.randint(0, NODES, (EDGES,), device=DEV)
    target = (source + torch.randint(1, 400, (EDGES,), device=DEV)) % NODES
    fields = torch.randn(8, NODES, 6, device=DEV)
    lengths = torch.randn(EDGES, 4, device=DEV)
    model = MeshNet(fixed).to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=DEV == "cuda")

    def step(i):
        state = fields[i % 8]
        noisy = state + 0.02 * torch.randn_like(state)
        loss = (model(noisy, lengths, source, target) - state[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    steps.main(build, 150)
