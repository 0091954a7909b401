"""Fine-tune an encoder of sentences, two micro-batches a step. No cause: with and without are the same."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

W, L, B, T, V = (32, 2, 2, 16, 100) if loop.SMALL else (1024, 16, 64, 384, 30528)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.o = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.up, self.down = nn.Linear(W, 4 * W), nn.Linear(4 * W, W)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(*x.shape[:2], 3, 16, W // 16).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.o(a)
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    words, net = (
        nn.Embedding(V, W).to(dev),
        nn.Sequential(*(Layer() for _ in range(L)), nn.LayerNorm(W)).to(dev),
    )
    params = [*words.parameters(), *net.parameters()]
    opt = torch.optim.AdamW(params, 1e-5, fused=dev == "cuda")
    tokens = [torch.randint(0, V, (2, B, T), device=dev) for _ in range(4)]

    def step(cause, i):
        for half in tokens[i % 4]:
            with torch.autocast(dev, dtype=torch.bfloat16):
                e = F.normalize(net(words(half)).mean(1).float(), dim=-1)
                first, second = e.chunk(2)
                loss = F.cross_entropy(first @ second.T * 20, torch.arange(len(first), device=dev))
            (loss / 2).backward()
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
