"""Draw pictures with a diffusion model. Cause: the scheduler is NumPy, so latents go to the host and back."""

import blocks as loop
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

C, B, N, T = (16, 1, 16, 30) if loop.SMALL else (192, 8, 128, 30)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.first, self.second = (
            nn.GroupNorm(8, c),
            nn.Conv2d(c, c, 3, padding=1),
            nn.Conv2d(c, c, 3, padding=1),
        )
        self.time = nn.Linear(64, c)

    def forward(self, x, t):
        h = self.first(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]
        return x + self.second(F.silu(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.tail = nn.Conv2d(4, C, 3, padding=1), nn.Conv2d(C, 4, 3, padding=1)
        self.fine, self.coarse, self.last = (nn.ModuleList(Block(C) for _ in range(k)) for k in (2, 4, 2))

    def forward(self, x, t):
        x = self.head(x)
        for each in self.fine:
            x = each(x, t)
        h = F.avg_pool2d(x, 2)
        for each in self.coarse:
            h = each(h, t)
        x = x + F.interpolate(h, scale_factor=2)
        for each in self.last:
            x = each(x, t)
        return self.tail(x)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    model = Model().to(dev, torch.bfloat16, memory_format=torch.channels_last).eval()
    levels = np.cos(np.linspace(0.02, 1.55, T + 1)) ** 2
    times = torch.randn(T, 1, 64, device=dev, dtype=torch.bfloat16)
    first = torch.randn(B, 4, N, N, device=dev)
    state = {"x": first, "before": torch.zeros_like(first)}

    def update(x, noise, before, k, clip):
        now, following = levels[T - k], levels[T - k - 1]
        clean = clip((x - (1 - now) ** 0.5 * noise) / now**0.5, -3, 3)
        mixed = 1.5 * clean - 0.5 * before if k else clean
        return following**0.5 * mixed + (1 - following) ** 0.5 * noise, clean

    @torch.inference_mode()
    def step(cause, i):
        k = i % T
        if k == 0:
            state["x"], state["before"] = first, torch.zeros_like(first)
        x = state["x"]
        noise = model(x.to(torch.bfloat16, memory_format=torch.channels_last), times[k].expand(B, 64)).float()
        if cause:
            x, before = update(*(each.cpu().numpy() for each in (x, noise, state["before"])), k, np.clip)
            state["x"], state["before"] = (
                torch.from_numpy(each.astype(np.float32)).to(dev) for each in (x, before)
            )
        else:
            state["x"], state["before"] = update(x, noise, state["before"], k, torch.clamp)

    return step


if __name__ == "__main__":
    loop.main(build)
