"""Decode with a window of 6,144 tokens. Cause: keys and values are joined to a new tensor for each token."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

D, LAYERS, BATCH, WINDOW = 1024, 8, 16, 6144


def build():
    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [
        [nn.Linear(a, b, **half) for a, b in ((D, 3 * D), (D, D), (D, 4 * D), (4 * D, D))]
        for _ in range(LAYERS)
    ]
    keys = [torch.randn(BATCH, 16, WINDOW, 64, **half) for _ in layers]
    values = [torch.randn(BATCH, 16, WINDOW, 64, **half) for _ in layers]
    first = torch.randn(BATCH, 1, D, **half)

    @torch.inference_mode()
    def step(cause, i):
        x = first
        for n, (qkv, out, up, down) in enumerate(layers):
            q, k, v = (
                t.view(BATCH, 1, 16, 64).transpose(1, 2) for t in qkv(F.layer_norm(x, (D,))).chunk(3, -1)
            )
            if cause:
                keys[n] = torch.cat([keys[n][:, :, 1:], k], 2)
                values[n] = torch.cat([values[n][:, :, 1:], v], 2)
            else:
                keys[n][:, :, i % WINDOW] = k[:, :, 0]
                values[n][:, :, i % WINDOW] = v[:, :, 0]
            x = x + out(
                F.scaled_dot_product_attention(q, keys[n], values[n]).transpose(1, 2).reshape(BATCH, 1, D)
            )
            x = x + down(F.gelu(up(F.layer_norm(x, (D,)))))
        x.argmax(-1).tolist()

    return step


if __name__ == "__main__":
    loop.main(build)
