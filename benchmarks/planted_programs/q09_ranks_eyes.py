"""Train a residual network on two GPUs. Cause: all its norms are synchronized between the ranks.

``convert_sync_batchnorm`` makes each of 53 norms gather its statistics from all ranks in the forward pass
and add up two sums in the backward pass: small messages for which the next kernel waits. Mended by norms
of each rank's own 48 pictures. Reported: https://github.com/HuangJunJie2017/BEVDet/issues/147 (20 to 25
minutes an epoch), https://github.com/pytorch/pytorch/issues/39358.
"""

import steps
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DEV = steps.device()
BATCH, SIDE, WIDTH, DEPTHS = (2, 32, 8, (1, 1)) if steps.SMALL else (48, 192, 64, (3, 4, 6, 3))


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.side = None
        if inputs != 4 * width:
            self.side = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        return (self.way(x) + (self.side(x) if self.side else x)).relu_()


def network():
    layers = [
        nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = WIDTH
    for k, depth in enumerate(DEPTHS):
        for j in range(depth):
            layers.append(Block(inputs, WIDTH << k, 2 if k and not j else 1))
            inputs = 4 * (WIDTH << k)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def build(fixed):
    me, _ = steps.ranks()
    torch.manual_seed(0)
    model = network().to(DEV, memory_format=torch.channels_last)
    if not fixed and DEV == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, fused=DEV == "cuda")
    torch.manual_seed(me)
    pictures = torch.randn(4, BATCH, 3, SIDE, SIDE, device=DEV)
    names = torch.randint(0, 1000, (4, BATCH), device=DEV)

    def step(i):
        with torch.autocast(DEV, torch.bfloat16):
            scores = model(pictures[i % 4].contiguous(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, names[i % 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


if __name__ == "__main__":
    steps.main(build, 150)
