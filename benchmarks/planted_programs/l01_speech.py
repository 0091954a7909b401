"""Train an encoder of speech, checkpointed. Cause: the cache of the allocator is emptied after each step."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DEV = loop.device()
D, LAYERS, B, T = (32, 2, 2, 64) if loop.SMALL else (512, 12, 48, 1600)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.n3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.pw, self.dw, self.pw2 = (
            nn.Linear(D, 2 * D),
            nn.Conv1d(D, D, 15, padding=7, groups=D),
            nn.Linear(D, D),
        )
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.SiLU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 8, D // 8).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, D))
        y = F.glu(self.pw(self.n2(x)))
        x = x + self.pw2(F.silu(self.dw(y.transpose(1, 2)).transpose(1, 2)))
        return x + self.ff(self.n3(x))


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(80, D, 3, 2, 1), nn.GELU(), nn.Conv1d(D, D, 3, 2, 1), nn.GELU())
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.out = nn.Linear(D, 128)

    def forward(self, mel):
        x = self.sub(mel).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.out(x)


def build():
    torch.manual_seed(0)
    model = Speech().to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    mel = torch.randn(B, 80, T, device=DEV)
    labels = torch.randint(1, 128, (B, T // 4), device=DEV)

    def step(cause, i):
        with torch.autocast(DEV, torch.bfloat16):
            logits = model(mel)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cause and DEV == "cuda":
            torch.cuda.empty_cache()
        return loss

    return step


if __name__ == "__main__":
    loop.main(build)
