"""A BERT-like encoder (Devlin et al. 2018) that predicts masked tokens of random text."""

from typing import Any

import torch

from hpcprof.workloads.ddp.models.transformer import library, tokens
from hpcprof.workloads.ddp.options import TrainingParameters

_VOCABULARY = 30522
_MASK_TOKEN = 103
_MASKED_SHARE = 0.15
_IGNORED_LABEL = -100


def build() -> Any:
    """Return the model, BERT-base with its language-modelling head."""
    return library().BertForMaskedLM(library().BertConfig())


def batch(parameters: TrainingParameters, device: Any) -> Any:
    """Return random tokens, some of them masked, and the masked tokens as labels."""
    text = tokens(parameters, "cpu", _VOCABULARY)
    masked = torch.rand(text.shape) < _MASKED_SHARE
    masked[:, 0] = True
    masked_tokens, labels = text.masked_fill(masked, _MASK_TOKEN), text.masked_fill(~masked, _IGNORED_LABEL)
    return [{"tokens": masked_tokens.to(device), "labels": labels.to(device)}]


def loss(model: Any, inputs: Any) -> Any:
    """Return the cross entropy of the masked tokens."""
    return model(input_ids=inputs["tokens"], labels=inputs["labels"]).loss
