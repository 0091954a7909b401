"""Write summaries token by token. Cause: the end of each row is looked for on the host."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T, H = (32, 1, 2, 8, 32) if loop.SMALL else (2048, 12, 32, 512, 64)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, kept, at):
        q, k, v = self.qkv(self.n1(x)).view(B, 1, 3, -1, H).permute(2, 0, 3, 1, 4)
        kept[0][:, :, at : at + 1], kept[1][:, :, at : at + 1] = k, v
        x = x + self.o(F.scaled_dot_product_attention(q, *kept).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    half = torch.bfloat16
    words = nn.Embedding(32000, D).to(dev, half)
    layers = nn.ModuleList(Layer() for _ in range(L)).to(dev, half).eval()
    norm, head = nn.LayerNorm(D).to(dev, half), nn.Linear(D, 32000).to(dev, half)
    kept = [torch.zeros(2, B, D // H, T, H, device=dev, dtype=half) for _ in range(L)]
    last = [torch.zeros(B, 1, dtype=torch.long, device=dev)]
    ended = torch.zeros(B, dtype=torch.bool, device=dev)

    @torch.inference_mode()
    def step(cause, i):
        x = words(last[0])
        for layer, each in zip(layers, kept):
            x = layer(x, each, i % T)
        last[0] = head(norm(x)).argmax(-1)
        ended.logical_or_(last[0][:, 0] == 2)
        if cause:
            for row in range(B):
                if ended[row].item():
                    ended[row] = False
        elif i % 50 == 0:
            ended.tolist()

    return step


if __name__ == "__main__":
    loop.main(build)
