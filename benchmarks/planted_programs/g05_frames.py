"""Decode latent video into frames. Clean: convolutions fill the GPU, and frames leave it beside them."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, S, B = (16, 8, 2) if loop.SMALL else (128, 64, 8)


class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(a, b, 3, 1, 1), nn.Conv2d(b, b, 3, 1, 1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.c2(F.silu(self.c1(x)))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    widths = [4 * C, 4 * C, 2 * C, C]
    layers = [nn.Conv2d(4, widths[0], 3, 1, 1)]
    for a, b in zip(widths, [*widths[1:], C]):
        layers += [Block(a, b), Block(b, b), nn.Upsample(scale_factor=2), nn.Conv2d(b, b, 3, 1, 1)]
    net = nn.Sequential(*layers[:-2], nn.SiLU(), nn.Conv2d(C, 3, 3, 1, 1))
    net = net.to(dev, torch.bfloat16, memory_format=torch.channels_last).eval()
    latents = torch.randn(4, B, 4, S, S, device=dev, dtype=torch.bfloat16)
    cuda = dev == "cuda"
    frames = [torch.empty(B, 3, 8 * S, 8 * S, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
    side = torch.cuda.Stream() if cuda else None
    left = [torch.cuda.Event() if cuda else None for _ in range(2)]

    @torch.inference_mode()
    def step(cause, i):
        out = net(latents[i % 4].contiguous(memory_format=torch.channels_last))
        out = (out.clamp(-1, 1) * 127 + 128).to(torch.uint8).contiguous()
        if not cuda:
            frames[i % 2].copy_(out)
            return
        left[i % 2].synchronize()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            frames[i % 2].copy_(out, non_blocking=True)
            left[i % 2].record()
        out.record_stream(side)

    return step


if __name__ == "__main__":
    loop.main(build)
