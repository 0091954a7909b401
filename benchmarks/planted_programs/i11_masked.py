"""Train a masked autoencoder of pictures, compiled. Clean: large products fill the GPU."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T = (32, 2, 2, 16) if loop.SMALL else (1280, 16, 96, 196)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(768, D), *(Layer() for _ in range(L)), nn.Linear(D, 768)).to(
        dev, torch.bfloat16
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    patches = torch.randn(2, B, T, 768, device=dev, dtype=torch.bfloat16)
    visible = torch.rand(B, T, 1, device=dev) < 0.25

    def loss(x):
        return F.mse_loss(model(x * visible), x)

    compiled = loss if loop.SMALL else torch.compile(loss)

    def step(cause, i):
        compiled(patches[i % 2]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    loop.main(build)
