"""Train a radiance field. Cause: torch.autograd.set_detect_anomaly(True) was left on."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

R, S, W = (16, 4, 32) if loop.SMALL else (4096, 64, 256)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(63 if k == 0 else W + 63 if k == 4 else W, W) for k in range(8))
        self.out = nn.Linear(W, 4)

    def forward(self, p):
        h = p
        for k, layer in enumerate(self.layers):
            h = F.relu(layer(torch.cat((h, p), -1) if k == 4 else h))
        return self.out(h)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(dev):
        net = Field()
        origins, directions, colors = torch.randn(64 * R, 3), torch.randn(64 * R, 3), torch.rand(64 * R, 3)
        depth = torch.linspace(2, 6, S)
        scale = 2.0 ** torch.arange(10)
    opt = torch.optim.Adam(net.parameters(), 5e-4, fused=dev == "cuda")

    def step(cause, i):
        torch.autograd.set_detect_anomaly(cause)
        chosen = torch.randint(0, 64 * R, (R,), device=dev)
        o, d, c = origins[chosen], directions[chosen], colors[chosen]
        p = o[:, None] + d[:, None] * depth[:, None]
        angle = (p[..., None, :] * scale[:, None]).flatten(-2)
        raw = net(torch.cat((p, angle.sin(), angle.cos()), -1))
        alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * (4 / S))
        weight = (
            alpha * torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10), 1), 1)[:, :-1]
        )
        loss = F.mse_loss((weight[..., None] * raw[..., :3].sigmoid()).sum(1), c)
        loss.backward()
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
