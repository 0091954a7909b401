"""Read prompts by a language model. Cause: rotary positions are applied in fp32, kernel by kernel."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, LAYERS, H, B, T = (64, 2, 2, 2, 16) if loop.SMALL else (2048, 8, 16, 8, 2048)
if DEV == "cuda":
    import triton
    import triton.language as tl

    @triton.jit
    def rotated(x, out, T: tl.constexpr, W: tl.constexpr, FACTOR: tl.constexpr):
        row, half = tl.program_id(0), tl.arange(0, W // 2)
        angle = (row % T).to(tl.float32) * tl.exp(half * FACTOR)
        a = tl.load(x + row * W + half).to(tl.float32)
        b = tl.load(x + row * W + W // 2 + half).to(tl.float32)
        c, s = tl.cos(angle), tl.sin(angle)
        tl.store(out + row * W + half, (a * c - b * s).to(tl.bfloat16))
        tl.store(out + row * W + W // 2 + half, (b * c + a * s).to(tl.bfloat16))


W = D // H
FACTOR = -2 / W * 9.21034


def rotate(x, cause):
    if not cause and DEV == "cuda":
        x = x.contiguous()
        out = torch.empty_like(x)
        rotated[(x.numel() // W,)](x, out, x.shape[2], W, FACTOR, num_warps=1)
        return out
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * torch.exp(
        torch.arange(W // 2, device=x.device) * FACTOR
    )
    cos, sin = (torch.cat([f(angle), f(angle)], -1) for f in (torch.cos, torch.sin))
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x, cause):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, W).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cause), rotate(k, cause), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def build():
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(LAYERS)).to(DEV, torch.bfloat16)
    prompts = torch.randn(B, T, D, device=DEV, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(cause, i):
        x = prompts
        for block in blocks:
            x = block(x, cause)

    return step


if __name__ == "__main__":
    loop.main(build)
