"""Write text token by token: the model is one CUDA graph, and each token is drawn from what is likely."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from turns import run


def build(variant, device):
    batch, width, heads, layers, words, room = (
        (8, 2048, 16, 12, 32000, 512) if device == "cuda" else (2, 16, 2, 1, 50, 8)
    )
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, cache, at, mask):
            q, k, v = self.qkv(F.layer_norm(x, (width,))).view(batch, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            mixed = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, 1, width))
            return x + self.narrow(F.gelu(self.wide(F.layer_norm(x, (width,)))))

    with torch.device(device):
        model = nn.ModuleList([Layer() for _ in range(layers)]).to(torch.bfloat16)
        embedding = torch.randn(words, width, dtype=torch.bfloat16) * 0.02
        caches = [
            torch.zeros(2, batch, heads, room, width // heads, dtype=torch.bfloat16) for _ in range(layers)
        ]
        token, at = torch.zeros(batch, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        places = torch.arange(room)
        logits = torch.zeros(batch, words)

    @torch.no_grad()
    def predict():
        x = embedding[token][:, None]
        mask = (places <= at)[None, None, None]
        for layer, cache in zip(model, caches, strict=True):
            x = layer(x, cache, at, mask)
        logits.copy_((F.layer_norm(x, (width,)) @ embedding.t())[:, 0])
        at.add_(1).remainder_(room)

    if device == "cuda":
        predict()
        predict()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            predict()

    @torch.no_grad()
    def step():
        graph.replay() if device == "cuda" else predict()
        if variant == "planted":
            table = logits.cpu().numpy()
            drawn = np.empty(batch, np.int64)
            for i, row in enumerate(table):
                best = np.argsort(row)[-50:]
                likely = np.exp(row[best] - row[best].max())
                drawn[i] = rng.choice(best, p=likely / likely.sum())
            token.copy_(torch.from_numpy(drawn))
        else:
            values, best = torch.topk(logits, 50)
            pick = torch.multinomial(torch.softmax(values, -1), 1)
            token.copy_(best.gather(1, pick).squeeze(1))

    return step


run("d08_storyteller", 200, build, lambda: torch.cuda.is_available() and torch.cuda.synchronize())
