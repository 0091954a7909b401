"""Write with a language model that may not repeat itself.

Cause: repeated groups of words are sought in Python.

For each token, the text so far of each row goes to the host as a list, a dictionary of all its groups of
three is made anew, and what would repeat one is forbidden by index. Mended by comparing all groups on the
GPU. Reported: https://github.com/huggingface/transformers/issues/26130 (looks through the whole text
every time), https://github.com/facebookresearch/fairseq/issues/3582 (90 % of the time).
"""

import steps
import torch
from torch import nn

DEV = steps.device()
ROWS, LAYERS, WIDTH, HEADS, LENGTH, WORDS, PROMPT = (
    (2, 2, 32, 2, 64, 64, 16) if steps.SMALL else (16, 12, 2048, 16, 2048, 32000, 1024)
)
SIZE, GROUP = WIDTH // HEADS, 3
TYPE = torch.bfloat16 if DEV == "cuda" else torch.float32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.register_buffer("past", torch.randn(2, ROWS, HEADS, LENGTH, SIZE, dtype=TYPE), persistent=False)

    def forward(self, x, place):
        q, k, v = self.qkv(self.first(x)).view(ROWS, 3, HEADS, 1, SIZE).unbind(1)
        self.past[0, :, :, place : place + 1] = k
        self.past[1, :, :, place : place + 1] = v
        mixed = nn.functional.scaled_dot_product_attention(
            q, self.past[0, :, :, : place + 1], self.past[1, :, :, : place + 1]
        )
        x = x + self.out(mixed.reshape(ROWS, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


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
        return self.head(self.norm(x))


def forbid_in_python(scores, text):
    for row, words in enumerate(text.tolist()):
        follows = {}
        for group in zip(*[words[k:] for k in range(GROUP)], strict=False):
            follows.setdefault(group[:-1], []).append(group[-1])
        for word in follows.get(tuple(words[1 - GROUP :]), []):
            scores[row, word] = -float("inf")
    return scores


def forbid(scores, text):
    groups = text.unfold(1, GROUP, 1)
    repeats = (groups[:, :, :-1] == text[:, None, 1 - GROUP :]).all(-1)
    penalty = torch.zeros_like(scores).scatter_reduce(1, groups[:, :, -1], repeats.to(scores.dtype), "amax")
    return scores.masked_fill(penalty > 0, -float("inf"))


def build(fixed):
    torch.manual_seed(0)
    if DEV == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.device(DEV):
        model = Model().to(TYPE).eval()
        text = torch.randint(0, WORDS, (ROWS, LENGTH))
    rule = forbid if fixed else forbid_in_python
    place = [PROMPT]

    @torch.inference_mode()
    def step(i):
        """One token of each row."""
        now = place[0]
        scores = model(text[:, now], now)
        text[:, now + 1] = rule(scores, text[:, : now + 1]).argmax(-1)
        place[0] = now + 1

    return step


if __name__ == "__main__":
    steps.main(build, 300)
