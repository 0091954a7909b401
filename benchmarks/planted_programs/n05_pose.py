"""Train a network for poses. Cause: the norm of each gradient is read for a log, one by one."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
C, BLOCKS, B, S = (8, 2, 2, 16) if loop.SMALL else (256, 16, 128, 32)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep, self.wide = nn.Conv2d(C, C, 7, padding=3, groups=C), nn.Conv2d(C, 4 * C, 1)
        self.norm, self.narrow = nn.BatchNorm2d(C), nn.Conv2d(4 * C, C, 1)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(self.deep(x)))))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, C, 4, 4), *(Block() for _ in range(BLOCKS)), nn.Conv2d(C, 17, 1))
    model = model.to(DEV, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    pictures = torch.randn(B, 3, 4 * S, 4 * S, device=DEV).to(memory_format=torch.channels_last)
    wanted, log = torch.randn(B, 17, S, S, device=DEV), []

    def step(cause, i):
        with torch.autocast(DEV, torch.bfloat16):
            loss = F.mse_loss(model(pictures), wanted)
        loss.backward()
        gradients = [each.grad for each in model.parameters()]
        if cause:
            log.append([each.norm().item() for each in gradients])
        else:
            log.append(torch.stack(torch._foreach_norm(gradients)))
        optimizer.step()
        optimizer.zero_grad()
        if len(log) > 8:
            log.clear()

    return step


if __name__ == "__main__":
    loop.main(build)
