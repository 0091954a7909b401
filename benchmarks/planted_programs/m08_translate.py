"""Train a translator. Cause: gradients are summed over eight parts of a batch that fits the GPU at once."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, B, T, V, PARTS = (32, 1, 8, 8, 100, 4) if loop.SMALL else (512, 6, 64, 128, 8000, 8)


class Translate(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target, self.out = nn.Embedding(V, D), nn.Embedding(V, D), nn.Linear(D, V)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.body = nn.Transformer(D, 8, LAYERS, LAYERS, 4 * D, **options)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        y = self.body(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True)
        return self.out(y)


def build():
    torch.manual_seed(0)
    model = Translate().to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    source = torch.randint(0, V, (B, T), device=DEV)
    target = torch.randint(0, V, (B, T + 1), device=DEV)

    def step(cause, i):
        parts = PARTS if cause else 1
        for s, t in zip(source.chunk(parts), target.chunk(parts), strict=True):
            with torch.autocast(DEV, torch.bfloat16):
                loss = F.cross_entropy(model(s, t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()) / parts
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
