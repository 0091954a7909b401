"""Synthesize sound: dilated convolutions in bfloat16 with a periodic activation in single precision."""

import torch
from torch import nn
from turns import run

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    @triton.jit
    def _snake(source, target, alpha, length, channels, BLOCK: tl.constexpr):
        row = tl.program_id(1).to(tl.int64)
        a = tl.load(alpha + row % channels)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(source + row * length + at, mask=at < length).to(tl.float32)
        s = libdevice.sin(a * x)
        tl.store(target + row * length + at, (x + s * s / a).to(tl.bfloat16), mask=at < length)

except ImportError:
    triton = None


def written_out(x, alpha):
    wide = x.float()
    a = alpha[None, :, None]
    return (wide + torch.sin(a * wide).pow(2) * (1 / a)).to(torch.bfloat16)


def in_one(x, alpha):
    if not x.is_cuda:
        return written_out(x, alpha)
    x = x.contiguous()
    y = torch.empty_like(x)
    _snake[(triton.cdiv(x.shape[2], 1024), x.shape[0] * x.shape[1])](
        x, y, alpha, x.shape[2], x.shape[1], BLOCK=1024
    )
    return y


def build(variant, device):
    batch, channels, length, layers = (8, 256, 16384, 8) if device == "cuda" else (1, 8, 64, 2)
    torch.manual_seed(0)
    with torch.device(device):
        convolutions = nn.ModuleList(
            [
                nn.Conv1d(channels, channels, 7, padding=3 * (1 + i % 3), dilation=1 + i % 3)
                for i in range(layers)
            ]
        ).to(torch.bfloat16)
        alphas = [torch.rand(channels) + 0.5 for _ in range(layers)]
        head = nn.Conv1d(channels, 1, 7, padding=3).to(torch.bfloat16)
        features = [torch.randn(batch, channels, length, dtype=torch.bfloat16) for _ in range(4)]
    snake = written_out if variant == "planted" else in_one
    count = 0

    @torch.no_grad()
    def step():
        nonlocal count
        x = features[count % 4]
        for convolution, alpha in zip(convolutions, alphas, strict=True):
            x = convolution(snake(x, alpha))
        count += 1
        return head(x)

    return step


run("d06_vocoder", 120, build, lambda: torch.cuda.is_available() and torch.cuda.synchronize())
