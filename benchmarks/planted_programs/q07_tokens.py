"""Draw pictures token by token, many at once (masked image model).

Cause: sampling sorts the whole vocabulary.

Only the 64 best of 8,192 codes may be drawn at each place, and of them those that make up 95 %; all codes
of all places are sorted for that, and the scores put back in place. Mended by ``topk`` and drawing among
the 64. Reported: https://github.com/vllm-project/vllm/pull/32234 (five to seven times as fast),
https://github.com/InternLM/lmdeploy/pull/1853, https://github.com/karpathy/llama2.c/issues/246.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
ROWS, PLACES, WIDTH, HEADS, LAYERS, CODES = (
    (2, 16, 32, 2, 2, 128) if steps.SMALL else (32, 256, 1536, 24, 16, 8192)
)
BEST, SHARE, MASK = 64, 0.95, CODES
TYPE = torch.bfloat16 if DEV == "cuda" else torch.float32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).view(ROWS, PLACES, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(ROWS, PLACES, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes, self.places = nn.Embedding(CODES + 1, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CODES)

    def forward(self, codes):
        return self.head(self.norm(self.layers(self.codes(codes) + self.places.weight)))


def cut(ordered):
    """Of scores in falling order, forbid those behind the share that is kept."""
    chances = ordered.softmax(-1)
    return ordered.masked_fill(chances.cumsum(-1) - chances > SHARE, -float("inf"))


def gumbel(scores):
    return scores - torch.empty_like(scores).exponential_().log()


def draw_sorted(scores):
    ordered, order = scores.sort(-1, descending=True)
    ordered[..., BEST:] = -float("inf")
    scores = torch.empty_like(scores).scatter_(-1, order, cut(ordered))
    chosen = gumbel(scores).argmax(-1, keepdim=True)
    return chosen[..., 0], scores.log_softmax(-1).gather(-1, chosen)[..., 0]


def draw_best(scores):
    ordered, order = scores.topk(BEST, -1)
    ordered = cut(ordered)
    chosen = gumbel(ordered).argmax(-1, keepdim=True)
    return order.gather(-1, chosen)[..., 0], ordered.log_softmax(-1).gather(-1, chosen)[..., 0]


def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Model().to(TYPE).eval()
        codes = torch.full((ROWS, PLACES), MASK)
    draw = draw_best if fixed else draw_sorted
    rounds = 8

    @torch.inference_mode()
    def step(i):
        """One of eight rounds: the surest places keep their code, the others are masked again."""
        if i % rounds == 0:
            codes.fill_(MASK)
        drawn, sure = draw(model(codes).float())
        drawn = torch.where(codes == MASK, drawn, codes)
        sure = sure.masked_fill(codes != MASK, float("inf"))
        kept = sure.topk(PLACES * (i % rounds + 1) // rounds, -1).indices
        codes.fill_(MASK).scatter_(-1, kept, drawn.gather(-1, kept))

    return step


if __name__ == "__main__":
    steps.main(build, 200)
