"""Train a vision transformer. Cause: the average of its weights is updated one by one, not in place."""

import copy

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, B, S = (32, 2, 2, 32) if loop.SMALL else (384, 24, 128, 224)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.qkv, self.proj = (
            nn.LayerNorm(D),
            nn.LayerNorm(D),
            nn.Linear(D, 3 * D),
            nn.Linear(D, D),
        )
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, D // 32 // 2 or 1, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, D))
        return x + self.mlp(self.n2(x))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 16, 16)
        self.where = nn.Parameter(torch.zeros(1, (S // 16) ** 2, D))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.where
        return self.head(self.norm(self.blocks(x)).mean(1))


def build():
    torch.manual_seed(0)
    model = Vit().to(DEV)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    images = [torch.randn(B, 3, S, S) for _ in range(4)]
    if DEV == "cuda":
        images = [i.pin_memory() for i in images]
    labels = torch.randint(0, 1000, (B,), device=DEV)
    count = [0]

    @torch.no_grad()
    def update(decay=0.9998):
        for old, new in zip(average.state_dict().values(), model.state_dict().values()):
            old.copy_(decay * old + (1.0 - decay) * new)

    @torch.no_grad()
    def update_together(decay=0.9998):
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1.0 - decay)

    def step(cause, i):
        batch = images[count[0] % 4].to(DEV, non_blocking=True)
        count[0] += 1
        with torch.autocast(DEV, torch.bfloat16):
            loss = F.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        update() if cause else update_together()
        return loss

    return step


if __name__ == "__main__":
    loop.main(build)
