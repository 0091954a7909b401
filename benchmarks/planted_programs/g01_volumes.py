"""Segment volumes by sliding windows. Cause: the scores of each window are summed on the host."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

C, W, N, K = (4, 16, 2, 3) if loop.SMALL else (32, 96, 8, 14)


def pair(a, b, stride=1):
    return nn.Sequential(
        nn.Conv3d(a, b, 3, stride, 1),
        nn.InstanceNorm3d(b, affine=True),
        nn.LeakyReLU(0.01, True),
        nn.Conv3d(b, b, 3, 1, 1),
        nn.InstanceNorm3d(b, affine=True),
        nn.LeakyReLU(0.01, True),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = pair(1, C), pair(C, 2 * C, 2), pair(2 * C, 4 * C, 2)
        self.up_b, self.up_a = nn.ConvTranspose3d(4 * C, 2 * C, 2, 2), nn.ConvTranspose3d(2 * C, C, 2, 2)
        self.d, self.e, self.out = pair(4 * C, 2 * C), pair(2 * C, C), nn.Conv3d(C, K, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(a)
        d = self.d(torch.cat([self.up_b(self.c(b)), b], 1))
        return self.out(self.e(torch.cat([self.up_a(d), a], 1)))


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = Net().to(dev, torch.bfloat16).eval()
    volume = torch.randn(1, 1, W, W, W + (N - 1) * W // 4, device=dev)
    weight = torch.ones(W, W, W, device=dev)
    weight_host = weight.cpu()
    total = torch.zeros(K, W, W, volume.shape[-1], device=dev)
    total_host = total.cpu()

    @torch.inference_mode()
    def step(cause, i):
        for k in range(N):
            at = slice(k * W // 4, k * W // 4 + W)
            scores = F.softmax(net(volume[..., at].bfloat16()).float(), 1)[0]
            if cause:
                total_host[..., at] += scores.cpu() * weight_host
            else:
                total[..., at] += scores * weight

    return step


if __name__ == "__main__":
    loop.main(build)
