"""Train a vision transformer: fused attention, bfloat16, a fused optimizer and large batches. No fault."""

import steps
import torch
from torch import nn

DEV = steps.device()
WIDTH, HEADS, LAYERS, ROWS, PLACES = (32, 2, 2, 4, 16) if steps.SMALL else (1024, 16, 12, 64, 256)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        rows, places, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(rows, places, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, places, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 1000)).to(DEV, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=DEV == "cuda")
    data = torch.randn(ROWS, PLACES, WIDTH, device=DEV, dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (ROWS,), device=DEV)

    def step(i):
        loss = nn.functional.cross_entropy(model(data).mean(1).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    steps.main(build, 150)
