"""Train a transformer on slides with distances. Cause: attention is written out."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T, H = (32, 1, 2, 16, 32) if loop.SMALL else (768, 8, 8, 1024, 64)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, far, written_out):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, -1, H).permute(2, 0, 3, 1, 4)
        if written_out:
            scores = (q @ k.transpose(-1, -2)) / H**0.5 + far
            h = F.softmax(scores.float(), -1).to(v.dtype) @ v
        else:
            h = F.scaled_dot_product_attention(q, k, v, far)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = nn.ModuleList(Layer() for _ in range(L)).to(dev, torch.bfloat16)
    head = nn.Linear(D, 4).to(dev, torch.bfloat16)
    opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], 1e-4, fused=dev == "cuda")
    x = torch.randn(2, B, T, D, device=dev, dtype=torch.bfloat16)
    place = torch.rand(B, T, 2, device=dev)
    far = -torch.cdist(place, place)[:, None].to(torch.bfloat16).contiguous()
    kinds = torch.randint(0, 4, (B,), device=dev)

    def step(cause, i):
        h = x[i % 2]
        for layer in net:
            h = layer(h, far, cause)
        loss = F.cross_entropy(head(h.mean(1)).float(), kinds)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
