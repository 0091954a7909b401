"""Serve a chat model with a window of attention, one CUDA graph a token. Clean: nothing is planted.

All rows are decoded by one graph; keys and values are a ring that is always full, so that all that is
read is used, and memory is what limits it. Words leave on a stream of their own into pinned memory and
are read one step later; rows that ended get a new request, a few small kernels whose number depends on
the text. ``--fixed`` is the same program. Advice that it follows:
https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/.
"""

import contextlib

import steps
import torch
from torch import nn

DEV = steps.device()
ROWS, LAYERS, WIDTH, HEADS, WINDOW, WORDS, TOKENS = (
    (2, 2, 32, 2, 16, 64, 2) if steps.SMALL else (48, 8, 2048, 16, 2048, 32000, 4)
)
SIZE = WIDTH // HEADS
TYPE = torch.bfloat16 if DEV == "cuda" else torch.float32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.register_buffer("past", torch.randn(2, ROWS, HEADS, WINDOW, SIZE, dtype=TYPE), persistent=False)

    def forward(self, x, place):
        q, k, v = self.qkv(self.first(x)).view(ROWS, 3, HEADS, 1, SIZE).unbind(1)
        self.past.index_copy_(3, place, torch.stack([k, v]))
        mixed = nn.functional.scaled_dot_product_attention(q, self.past[0], self.past[1])
        x = x + self.out(mixed.reshape(ROWS, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, token, place):
        x = self.words(token)
        for layer in self.layers:
            x = layer(x, place)
        return self.head(self.norm(x)).argmax(-1)


def build(fixed):
    torch.manual_seed(0)
    cuda = DEV == "cuda"
    with torch.device(DEV):
        model = Model().to(TYPE).eval()
        token, place = torch.zeros(ROWS, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        said = torch.zeros(TOKENS, ROWS, dtype=torch.long)
        turn = torch.zeros(1, dtype=torch.long)
        requests = torch.randint(0, WORDS, (64,))

    @torch.inference_mode()
    def one():
        token.copy_(model(token, place))
        said.index_copy_(0, turn, token[None])
        place.add_(1).remainder_(WINDOW)
        turn.add_(1).remainder_(TOKENS)

    work = torch.cuda.Stream() if cuda else None
    copies = torch.cuda.Stream() if cuda else None
    graph = None
    if cuda:
        torch.backends.cuda.enable_cudnn_sdp(False)
        with torch.cuda.stream(work):
            one()
            turn.zero_()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=work):
                one()
            turn.zero_()
    kept = [torch.zeros_like(said) for _ in range(2)]
    read = [torch.zeros(TOKENS, ROWS, dtype=torch.long, pin_memory=cuda) for _ in range(2)]
    done = [torch.cuda.Event() if cuda else None for _ in range(2)]
    texts = [[] for _ in range(ROWS)]

    @torch.inference_mode()
    def step(i):
        """Four tokens of all rows; what the last step said is read meanwhile."""
        slot = i % 2
        with torch.cuda.stream(work) if cuda else contextlib.nullcontext():
            for _ in range(TOKENS):
                graph.replay() if graph else one()
            kept[slot].copy_(said)
            if cuda:
                copies.wait_stream(work)
        with torch.cuda.stream(copies) if cuda else contextlib.nullcontext():
            read[slot].copy_(kept[slot], non_blocking=True)
            if cuda:
                done[slot].record()
        if i == 0:
            return
        if cuda:
            done[1 - slot].synchronize()
        words = read[1 - slot].tolist()
        with torch.cuda.stream(work) if cuda else contextlib.nullcontext():
            for row in range(ROWS):
                texts[row].extend(each[row] for each in words)
                if len(texts[row]) > 40 + (row * 37 + words[0][row]) % 200:  # the request ended: the next one
                    texts[row] = []
                    token[row].copy_(requests[(row + i) % 64])

    return step


if __name__ == "__main__":
    steps.main(build, 250)
