"""Train a mixture of experts. Cause: the host waits for torch.where, which seeks the rows of each expert."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, EXPERTS, TOKENS = (16, 2, 4, 64) if loop.SMALL else (1024, 4, 16, 32768)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(D), nn.Linear(D, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)) for _ in range(EXPERTS)
        )

    def forward(self, x, cause):
        h = self.norm(x)
        share, which = self.router(h).softmax(-1).max(-1)
        if cause:
            y = torch.zeros_like(x)
            for e, expert in enumerate(self.experts):
                rows = torch.where(which == e)[0]
                y = y.index_put((rows,), expert(h[rows]).to(y.dtype))
        else:
            order = which.argsort()
            sizes = torch.bincount(which, minlength=EXPERTS).tolist()
            parts = [expert(rows) for expert, rows in zip(self.experts, h[order].split(sizes), strict=True)]
            y = torch.zeros_like(x).index_put((order,), torch.cat(parts).to(x.dtype))
        return x + share[:, None] * y


def build():
    torch.manual_seed(0)
    layers = nn.ModuleList(Experts() for _ in range(LAYERS)).to(DEV)
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-5, fused=True)
    given, wanted = torch.randn(TOKENS, D, device=DEV), torch.randn(TOKENS, D, device=DEV)

    def step(cause, i):
        with torch.autocast(DEV, torch.bfloat16):
            x = given
            for layer in layers:
                x = layer(x, cause)
            loss = F.mse_loss(x, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
