"""Answer with a language model of 3 billion weights. Cause: autocast casts all weights for each token.

The weights are loaded in single precision and the loop runs under ``torch.autocast``, as its training did:
each product reads its weights in float32 and writes them in bfloat16 first. Mended by ``model.bfloat16()``.
Reported: https://github.com/huggingface/diffusers/pull/511 (without autocast 25 to 35 % faster),
https://github.com/AUTOMATIC1111/stable-diffusion-webui/pull/15820.
"""

import contextlib

import steps
import torch
from torch import nn

DEV = steps.device()
ROWS, LAYERS, WIDTH, HEADS, LENGTH, WORDS = (
    (2, 2, 32, 2, 32, 64) if steps.SMALL else (8, 16, 4096, 32, 1024, 32000)
)
SIZE = WIDTH // HEADS


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 5 * WIDTH, bias=False), nn.Linear(5 * WIDTH, WIDTH, bias=False)
        shape = (ROWS, HEADS, LENGTH, SIZE)
        self.register_buffer("keys", torch.zeros(shape, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("values", torch.zeros(shape, dtype=torch.bfloat16), persistent=False)

    def forward(self, x, place):
        q, k, v = self.qkv(self.first(x)).to(torch.bfloat16).view(ROWS, 3, HEADS, 1, SIZE).unbind(1)
        self.keys[:, :, place : place + 1] = k
        self.values[:, :, place : place + 1] = v
        past = self.keys[:, :, : place + 1], self.values[:, :, : place + 1]
        mixed = nn.functional.scaled_dot_product_attention(q, *past)
        x = x + self.out(mixed.reshape(ROWS, WIDTH))
        return x + self.down(nn.functional.silu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, token, place):
        x = self.words(token) + self.places.weight[place]
        for layer in self.layers:
            x = layer(x, place)
        return self.head(self.norm(x)).argmax(-1)


def build(fixed):
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.device(DEV):
        model = Model().eval()
        token = torch.zeros(ROWS, dtype=torch.long)
    if fixed:
        model = model.bfloat16()
    last = [token]

    @torch.inference_mode()
    def step(i):
        with contextlib.nullcontext() if fixed else torch.autocast(DEV, torch.bfloat16):
            last[0] = model(last[0], (100 + i) % LENGTH)

    return step


if __name__ == "__main__":
    steps.main(build, 300)
