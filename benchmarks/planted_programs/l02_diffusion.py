"""Sample from a diffusion U-Net. Cause: each block is checked for values that are not finite."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
C, B, S = (16, 1, 16) if loop.SMALL else (192, 12, 64)


class Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, i), nn.GroupNorm(8, o)
        self.c1, self.c2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.t, self.skip = nn.Linear(4 * C, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(C, 4 * C), nn.SiLU(), nn.Linear(4 * C, 4 * C))
        self.inp, self.out = nn.Conv2d(4, C, 3, padding=1), nn.Conv2d(C, 4, 3, padding=1)
        self.down = nn.ModuleList(
            [Res(C, C), Res(C, C), Res(C, 2 * C), Res(2 * C, 2 * C), Res(2 * C, 2 * C), Res(2 * C, 2 * C)]
        )
        self.up = nn.ModuleList(
            [
                Res(4 * C, 2 * C),
                Res(4 * C, 2 * C),
                Res(4 * C, 2 * C),
                Res(4 * C, 2 * C),
                Res(3 * C, C),
                Res(2 * C, C),
            ]
        )

    def forward(self, x, t, check):
        f = torch.exp(torch.arange(C // 2, device=DEV, dtype=torch.float32) * -0.1)
        t = self.time(torch.cat([torch.sin(t * f), torch.cos(t * f)])[None].to(x.dtype))
        h, kept = self.inp(x), []
        for i, block in enumerate(self.down):
            h = block(h, t)
            check_finite(h, check)
            kept.append(h)
            if i in (1, 3):
                h = F.avg_pool2d(h, 2)
        for i, block in enumerate(self.up):
            h = block(torch.cat([h, kept.pop()], 1), t)
            check_finite(h, check)
            if i in (1, 3):
                h = F.interpolate(h, scale_factor=2, mode="nearest")
        return self.out(h)


def check_finite(h, check):
    if check and not torch.isfinite(h).all():
        raise FloatingPointError("a block gave NaN")


def build():
    torch.manual_seed(0)
    model = Unet().to(DEV, torch.bfloat16).to(memory_format=torch.channels_last).eval()
    betas = torch.linspace(1e-4, 0.02, 50)
    abar = torch.cumprod(1 - betas, 0).tolist()
    state = {"i": 0, "x": None, "images": 0}

    @torch.no_grad()
    def step(cause, i):
        i = state["i"] % 50
        if i == 0:
            state["x"] = torch.randn(B, 4, S, S, device=DEV, dtype=torch.bfloat16).to(
                memory_format=torch.channels_last
            )
        n = 49 - i
        x = state["x"]
        eps = model(x, torch.full((), float(n), device=DEV), cause)
        mean = (x - eps * ((1 - abar[n]) ** 0.5)) / abar[n] ** 0.5
        prev = abar[n - 1] if n else 1.0
        state["x"] = (mean.clamp(-3, 3) * prev**0.5 + eps * (1 - prev) ** 0.5).contiguous(
            memory_format=torch.channels_last
        )
        state["i"] += 1
        return state["x"]

    return step


if __name__ == "__main__":
    loop.main(build)
