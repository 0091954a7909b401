"""Train a structure model: attention along the rows of an alignment, with a bias of each pair of residues."""

import torch
import torch.nn.functional as F
from torch import nn
from turns import run


def build(variant, device):
    rows, length, width, heads, layers = (96, 384, 256, 8, 4) if device == "cuda" else (2, 16, 32, 2, 1)
    torch.manual_seed(0)

    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, bias):
            q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            if variant == "planted":
                scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
                mixed = torch.softmax(scores + bias, dim=-1, dtype=torch.float32).to(v.dtype) @ v
            else:
                mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
            return x + self.narrow(F.gelu(self.wide(self.norm2(x))))

    with torch.device(device):
        model = nn.ModuleList([Row() for _ in range(layers)])
        bias = torch.randn(1, heads, length, length, dtype=torch.bfloat16)
        batches = [torch.randn(rows, length, width) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    count = 0

    def step():
        nonlocal count
        with torch.autocast(device, torch.bfloat16):
            x = batches[count % 4]
            for layer in model:
                x = layer(x, bias)
            loss = x.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += 1

    return step


run("d01_msa_rows", 60, build, lambda: torch.cuda.is_available() and torch.cuda.synchronize())
