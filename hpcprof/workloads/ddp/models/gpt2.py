"""GPT-2 (Radford et al. 2019) that predicts the next token of random text."""

from typing import Any

from hpcprof.workloads.ddp.models.transformer import library, tokens
from hpcprof.workloads.ddp.options import TrainingParameters

_VOCABULARY = 50257


def build() -> Any:
    """Return the model, 124,439,808 parameters."""
    return library().GPT2LMHeadModel(library().GPT2Config(use_cache=False))


def batch(parameters: TrainingParameters, device: Any) -> Any:
    """Return random tokens."""
    return [tokens(parameters, device, _VOCABULARY)]


def loss(model: Any, inputs: Any) -> Any:
    """Return the loss of causal language modelling."""
    return model(input_ids=inputs, labels=inputs).loss
