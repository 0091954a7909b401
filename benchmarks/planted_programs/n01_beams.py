"""Beam search. Cause: keys and values of the prompt, which all beams share, are reordered for each token."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, H, B, BEAMS, PROMPT, NEW, V = (32, 2, 2, 2, 2, 16, 8, 50)
if not loop.SMALL:
    D, LAYERS, H, B, BEAMS, PROMPT, NEW, V = 1024, 10, 16, 16, 4, 4032, 64, 16000


def build():
    torch.manual_seed(0)
    options = {"device": DEV, "dtype": torch.bfloat16}
    norms = [nn.LayerNorm(D, **options) for _ in range(2 * LAYERS)]
    qkv, proj = ([nn.Linear(D, n * D, **options) for _ in range(LAYERS)] for n in (3, 1))
    up, down = ([nn.Linear(a * D, b * D, **options) for _ in range(LAYERS)] for a, b in ((1, 4), (4, 1)))
    words, out = nn.Embedding(V, D, **options), nn.Linear(D, V, **options)
    shape = (B * BEAMS, H, PROMPT + NEW, D // H)
    kept = [[torch.randn(shape, **options) for _ in range(LAYERS)] for _ in range(2)]
    rows = torch.arange(B, device=DEV)[:, None] * BEAMS
    state = {"token": torch.zeros(B * BEAMS, dtype=torch.long, device=DEV)}
    state["score"] = torch.zeros(B, BEAMS, device=DEV)

    def reorder(parents, whole):
        for side in kept:
            for layer, each in enumerate(side):
                if whole:
                    side[layer] = each.index_select(0, parents)
                else:
                    each[:, :, PROMPT:] = each[:, :, PROMPT:].index_select(0, parents)

    @torch.inference_mode()
    def step(cause, i):
        x, at = words(state["token"])[:, None], PROMPT + i % NEW
        for k in range(LAYERS):
            q, key, value = qkv[k](norms[2 * k](x)).view(-1, 3, H, 1, D // H).unbind(1)
            kept[0][k][:, :, at : at + 1], kept[1][k][:, :, at : at + 1] = key, value
            y = F.scaled_dot_product_attention(q, kept[0][k], kept[1][k])
            x = x + proj[k](y.reshape(-1, 1, D))
            x = x + down[k](F.gelu(up[k](norms[2 * k + 1](x))))
        score = F.log_softmax(out(x[:, 0]).float(), -1).view(B, BEAMS, V) + state["score"][..., None]
        state["score"], best = score.flatten(1).topk(BEAMS)
        state["token"] = (best % V).flatten()
        reorder((rows + best // V).flatten(), cause)

    return step


if __name__ == "__main__":
    loop.main(build)
