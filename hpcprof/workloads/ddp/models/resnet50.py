"""ResNet-50 for ImageNet (He et al. 2015), with the stride in the 3x3 convolutions as is usual today."""

from typing import Any

import torch
from torch import nn

from hpcprof.workloads.ddp.models.mlp import loss as loss
from hpcprof.workloads.ddp.options import TrainingParameters

_CLASSES = 1000
_IMAGE_PIXELS = 224
_EXPANSION = 4
# The number of blocks and of inner channels in the four stages.
_BLOCKS_AND_WIDTHS = ((3, 64), (4, 128), (6, 256), (3, 512))


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut, which is a projection if the shapes differ."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = inner * _EXPANSION
        self.body = nn.Sequential(
            *_convolution(channels, inner, 1),
            nn.ReLU(inplace=True),
            *_convolution(inner, inner, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(inner, outer, 1),
        )
        is_identity = stride == 1 and channels == outer
        self.shortcut = (
            nn.Identity() if is_identity else nn.Sequential(*_convolution(channels, outer, 1, stride))
        )

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


def _convolution(channels: int, outer: int, size: int, stride: int = 1) -> tuple[Any, Any]:
    convolution = nn.Conv2d(channels, outer, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(outer)


def build() -> Any:
    """Return the model, 25,557,032 parameters."""
    blocks: list[Any] = []
    channels = 64
    for stage, (count, inner) in enumerate(_BLOCKS_AND_WIDTHS):
        for block in range(count):
            blocks.append(_Bottleneck(channels, inner, 2 if stage and not block else 1))
            channels = inner * _EXPANSION
    return nn.Sequential(
        *_convolution(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, _CLASSES),
    )


def batch(parameters: TrainingParameters, device: Any) -> Any:
    """Return random images and their classes."""
    samples = torch.randn(parameters.batch_size, 3, _IMAGE_PIXELS, _IMAGE_PIXELS).to(device)
    return [{"samples": samples, "classes": torch.randint(0, _CLASSES, (len(samples),)).to(device)}]


def optimizer(parameters: Any) -> Any:
    """Return SGD with momentum, as in the paper."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)
