"""Train a language model in bfloat16. Clean: fused attention and optimizer, tokens from pinned memory."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, H, B, T, V = (32, 2, 2, 2, 16, 100) if loop.SMALL else (1024, 12, 16, 12, 1024, 32000)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        x = x + self.proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        )
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(V, D)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.out = nn.RMSNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.words(x))))


def build():
    torch.manual_seed(0)
    model = Language().to(DEV, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    tokens = [torch.randint(0, V, (B, T + 1)) for _ in range(8)]
    if DEV == "cuda":
        tokens = [t.pin_memory() for t in tokens]
    count = [0]

    def step(cause, i):
        batch = tokens[count[0] % 8].to(DEV, non_blocking=True)
        count[0] += 1
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    loop.main(build)
