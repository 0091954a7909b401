"""Four linear layers, small enough for a CPU."""

from typing import Any

import torch
from torch import nn

from hpcprof.workloads.ddp.options import TrainingParameters

_HIDDEN_WIDTH = 256
_CLASSES = 10


def build() -> Any:
    """Return the model, with 256 inputs, three hidden layers of 256 and 10 classes."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(_HIDDEN_WIDTH, _HIDDEN_WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(_HIDDEN_WIDTH, _CLASSES))


def batch(parameters: TrainingParameters, device: Any) -> Any:
    """Return samples and their classes."""
    samples = torch.randn(parameters.batch_size, _HIDDEN_WIDTH).to(device)
    return [{"samples": samples, "classes": torch.randint(0, _CLASSES, (len(samples),)).to(device)}]


def loss(model: Any, inputs: Any) -> Any:
    """Return the cross entropy."""
    return nn.functional.cross_entropy(model(inputs["samples"]), inputs["classes"])
