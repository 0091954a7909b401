"""Sample images by a diffusion transformer. Nothing is planted; mended: a step is one CUDA graph."""

import torch
import torch.nn.functional as F
from torch import nn
from turns import run


def build(variant, device):
    images, tokens, width, heads, layers = (16, 1024, 1152, 16, 12) if device == "cuda" else (1, 16, 32, 2, 1)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x)).view(images, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v)
            x = x + self.out(mixed.transpose(1, 2).reshape(images, tokens, width))
            return x + self.narrow(F.gelu(self.wide(self.norm2(x))))

    with torch.device(device):
        model = nn.ModuleList([Block() for _ in range(layers)]).to(torch.bfloat16)
        x = torch.randn(images, tokens, width, dtype=torch.bfloat16)

    @torch.no_grad()
    def denoise():
        y = x
        for block in model:
            y = block(y)
        x.add_(y, alpha=-0.01)

    if variant == "planted" or device != "cuda":
        return denoise
    denoise()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        denoise()
    return graph.replay


run("d09_denoiser", 60, build, lambda: torch.cuda.is_available() and torch.cuda.synchronize())
