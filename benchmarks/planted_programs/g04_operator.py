"""Train a neural operator for waves. Cause: its products run in single precision without TF32."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, M, S, B, L = (8, 4, 16, 2, 1) if loop.SMALL else (128, 24, 128, 24, 4)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, M, M, C, C, dtype=torch.cfloat) / C)
        self.skip = nn.Linear(C, C)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

    def forward(self, x):  # batch, S, S, C
        z = torch.fft.rfft2(x, dim=(1, 2))
        y = torch.zeros_like(z)
        y[:, :M, :M] = torch.einsum("bxyi,xyio->bxyo", z[:, :M, :M], self.w[0])
        y[:, -M:, :M] = torch.einsum("bxyi,xyio->bxyo", z[:, -M:, :M], self.w[1])
        h = F.gelu(torch.fft.irfft2(y, s=(S, S), dim=(1, 2)) + self.skip(x))
        return x + self.mlp(h)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, C), *[Layer() for _ in range(L)], nn.Linear(C, 1)).to(dev)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    x, y = torch.randn(B, S, S, 3, device=dev), torch.randn(B, S, S, 1, device=dev)

    def step(cause, i):
        torch.backends.cuda.matmul.allow_tf32 = not cause
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
