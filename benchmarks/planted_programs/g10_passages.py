"""Rank passages by a cross-encoder. Clean: pinned batches are copied one step ahead."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T, H = (32, 1, 4, 16, 32) if loop.SMALL else (1024, 16, 64, 256, 64)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(*x.shape[:2], 3, -1, H).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    cuda = dev == "cuda"
    torch.manual_seed(0)
    words = nn.Embedding(30000, D).to(dev, torch.bfloat16)
    net = nn.Sequential(*[Layer() for _ in range(L)], nn.LayerNorm(D), nn.Linear(D, 1))
    net = net.to(dev, torch.bfloat16).eval()
    pages = [torch.randint(0, 30000, (B, T), pin_memory=cuda) for _ in range(8)]
    side = torch.cuda.Stream() if cuda else None
    ahead, scores = [], []

    def fetch(i):
        if not cuda:
            return pages[i % 8]
        with torch.cuda.stream(side):
            return pages[i % 8].to(dev, non_blocking=True)

    @torch.inference_mode()
    def step(cause, i):
        tokens = ahead.pop() if ahead else fetch(i)
        if cuda:
            torch.cuda.current_stream().wait_stream(side)
            tokens.record_stream(torch.cuda.current_stream())
        ahead.append(fetch(i + 1))
        scores.append(net(words(tokens))[:, 0])
        if len(scores) == 10:
            torch.stack(scores).float().cpu()
            scores.clear()

    return step


if __name__ == "__main__":
    loop.main(build)
