"""Train a segmentation network. Cause: the confusion matrix is counted on the CPU in each step."""

import blocks as loop
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

B, S, K, C = (2, 16, 5, 8) if loop.SMALL else (16, 256, 21, 64)


def build():
    dev = loop.device()
    torch.manual_seed(0)

    def conv(a, b, s=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    net = nn.Sequential(
        conv(3, C, 2),
        *[conv(C, C) for _ in range(3)],
        conv(C, 4 * C, 2),
        *[conv(4 * C, 4 * C) for _ in range(8)],
        nn.Conv2d(4 * C, K, 1),
    )
    net = net.to(dev, memory_format=torch.channels_last)
    with torch.device(dev):
        data = [
            (torch.randn(B, 3, S, S).to(memory_format=torch.channels_last), torch.randint(0, K, (B, S, S)))
            for _ in range(4)
        ]
    opt = torch.optim.SGD(net.parameters(), 0.01, 0.9, fused=dev == "cuda")
    counts = np.zeros((K, K), dtype=np.int64)
    total = torch.zeros(K * K, device=dev)

    def step(cause, i):
        x, y = data[i % 4]
        with torch.autocast(dev, dtype=torch.bfloat16):
            out = F.interpolate(net(x), size=(S, S))
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        guess = out.argmax(1)
        if cause:
            t, g = y.cpu().numpy(), guess.cpu().numpy()
            counts[:] += np.bincount(K * t.ravel() + g.ravel(), minlength=K * K).reshape(K, K)
        else:
            total.add_(torch.histc((K * y + guess).float(), K * K, 0, K * K - 1))

    return step


if __name__ == "__main__":
    loop.main(build)
