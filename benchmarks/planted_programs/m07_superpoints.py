"""Label clouds of points, training. Cause: a million points are summed into 24 rows by index_add_."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
N, D, PARTS, LAYERS = (1000, 16, 4, 2) if loop.SMALL else (1_000_000, 128, 24, 3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.point, self.part, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x, part, share, cause):
        if cause:
            summed = torch.zeros(PARTS, D, device=x.device).index_add_(0, part, x.float())
        else:
            summed = (share @ x).float()
        parts = self.part(summed / (x.shape[0] / PARTS))
        return x + F.gelu(self.point(self.norm(x)) + (share.T @ parts.to(share.dtype)))


def build():
    torch.manual_seed(0)
    first, layers, out = nn.Linear(6, D), nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(D, 20)
    model = nn.ModuleList([first, layers, out]).to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    points = torch.randn(N, 6, device=DEV, dtype=torch.bfloat16)
    part, labels = torch.randint(0, PARTS, (N,), device=DEV), torch.randint(0, 20, (N,), device=DEV)
    share = F.one_hot(part, PARTS).T.to(torch.bfloat16).contiguous()

    def step(cause, i):
        with torch.autocast(DEV, torch.bfloat16):
            x = first(points)
            for layer in layers:
                x = layer(x, part, share, cause)
            loss = F.cross_entropy(out(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
