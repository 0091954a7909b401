"""Train an MLP-Mixer in single precision. Cause: matrix products run without TF32."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, B, S, N = (16, 2, 2, 32, 4) if loop.SMALL else (256, 12, 160, 224, 196)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.tokens = nn.Sequential(nn.Linear(N, 2 * N), nn.GELU(), nn.Linear(2 * N, N))
        self.channels = nn.Sequential(nn.Linear(D, 3 * D), nn.GELU(), nn.Linear(3 * D, D))

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 16, 16)
        self.blocks = nn.Sequential(*(Mixer() for _ in range(LAYERS)))
        self.head = nn.Linear(D, 100)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def build():
    torch.manual_seed(0)
    model = Model().to(DEV)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images = torch.randn(B, 3, S, S, device=DEV)
    labels = torch.randint(0, 100, (B,), device=DEV)

    def step(cause, i):
        torch.set_float32_matmul_precision("highest" if cause else "high")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


if __name__ == "__main__":
    loop.main(build)
