"""Train image and text towers by contrast. Cause: captions are cut into tokens in the loop."""

import blocks as loop
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

D, L, B, T, S = (32, 1, 4, 8, 32) if loop.SMALL else (768, 8, 192, 48, 224)
WORDS = ["a", "photo", "of", "red", "dog", "on", "green", "grass", "under", "bright", "bicycle"]


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 8, 4 * D, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers, self.norm = nn.TransformerEncoder(layer, L, enable_nested_tensor=False), nn.LayerNorm(D)

    def forward(self, x):
        return F.normalize(self.norm(self.layers(x)).mean(1), dim=-1)


def cut(captions):
    """Pairs of letters that are in the vocabulary become one token, the longest word first."""
    rows = []
    for caption in captions:
        row = []
        for word in caption.split():
            k = 0
            while k < len(word):
                for n in range(min(6, len(word) - k), 0, -1):
                    code = hash_of(word[k : k + n])
                    if n == 1 or code % 3 == 0:
                        row.append(code % 30000)
                        k += n
                        break
        rows.append((row + [0] * T)[:T])
    return torch.tensor(rows)


def hash_of(piece):
    code = 7
    for letter in piece:
        code = (code * 31 + ord(letter)) % 1000003
    return code


def build():
    dev = loop.device()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    patches = nn.Conv2d(3, D, 16, 16).to(dev)
    words = nn.Embedding(30000, D).to(dev)
    image, text = Tower().to(dev), Tower().to(dev)
    params = [p for m in (patches, words, image, text) for p in m.parameters()]
    opt = torch.optim.AdamW(params, 1e-4, fused=dev == "cuda")
    pictures = torch.randn(B, 3, S, S, device=dev)
    captions = [[" ".join(rng.choice(WORDS, 14)) for _ in range(B)] for _ in range(8)]
    ready = [cut(c).to(dev) for c in captions]
    same = torch.arange(B, device=dev)

    def step(cause, i):
        tokens = cut(captions[i % 8]).to(dev) if cause else ready[i % 8]
        with torch.autocast(dev, dtype=torch.bfloat16):
            a = image(patches(pictures).flatten(2).transpose(1, 2))
            b = text(words(tokens))
            scores = 20 * a @ b.T
        loss = (F.cross_entropy(scores.float(), same) + F.cross_entropy(scores.T.float(), same)) / 2
        loss.backward()
        opt.step()
        opt.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
