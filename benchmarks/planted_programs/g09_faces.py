"""Train a generator against a critic. Cause: the noise of all layers is drawn on the host and copied."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, B, U = (8, 2, 2) if loop.SMALL else (64, 64, 5)


class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.c, self.s = nn.Conv2d(a, b, 3, 1, 1), nn.Linear(128, a)
        self.z = nn.Parameter(torch.zeros(b, 1, 1))

    def forward(self, x, style, noise):
        x = F.interpolate(x, scale_factor=2) * (1 + self.s(style))[:, :, None, None]
        return F.leaky_relu(self.c(x) + self.z * noise, 0.2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [min(8, 2 ** (U - k)) * C for k in range(U + 1)]
        self.first = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        self.ups = nn.ModuleList(Up(a, b) for a, b in zip(widths, widths[1:]))
        self.out = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, style, noises):
        x = self.first.expand(style.shape[0], -1, -1, -1)
        for up, noise in zip(self.ups, noises):
            x = up(x, style, noise)
        return self.out(x).tanh()


def critic():
    widths = [3, *[min(8, 2**k) * C for k in range(U)]]
    layers = [m for a, b in zip(widths, widths[1:]) for m in (nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(1))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    size = 4 * 2**U
    gen, judge = Generator().to(dev), critic().to(dev)
    real = torch.randn(B, 3, size, size, device=dev).clamp(-1, 1)
    judge(real)
    opts = [torch.optim.Adam(m.parameters(), 2e-4, (0.0, 0.99), fused=dev == "cuda") for m in (gen, judge)]

    def draw(host):
        at = "cpu" if host else dev
        shapes = [(B, 128), *[(B, 1, 4 * 2**k, 4 * 2**k) for k in range(1, U + 1)]]
        drawn = [torch.randn(s, device=at).to(dev) for s in shapes]
        return drawn[0], drawn[1:]

    def step(cause, i):
        with torch.autocast(dev, dtype=torch.bfloat16):
            fake = gen(*draw(cause))
            loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(real)).mean()
        loss.backward()
        opts[1].step()
        opts[1].zero_grad()
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = F.softplus(-judge(gen(*draw(cause)))).mean()
        loss.backward()
        opts[0].step()
        for opt in opts:
            opt.zero_grad()
        if i % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    loop.main(build)
